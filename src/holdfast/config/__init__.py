"""The one configuration file. Every setting has a type, a default and a meaning in `settings`, and nowhere else."""

from __future__ import annotations

import os
import stat

from ..errors import BadArgument, ConfigError
from ..home import user_home
from ..runner.whereabouts import WRITABLE
from .lines import line_in, line_of, unknown, unquoted
from .setting import Setting, prompt_patterns
from .settings import PEOPLE_EVENTS, SETTINGS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from .channels import CommandChannel, WebhookChannel
    from .setting import Value

__all__ = ("PEOPLE_EVENTS", "SETTINGS", "Config", "Setting", "config_path", "line_of", "load", "prompt_patterns")

_BY_NAME = {setting.name: setting for setting in SETTINGS}
_SECTIONS = tuple(dict.fromkeys(setting.section for setting in SETTINGS))
_CHANNELS = ("command", "webhook")
# Every command finds its session in it; it only looks like a setting of [session].
_NO_SETTING = "HOLDFAST_SESSION_ID"


class UnsafeConfig(ConfigError):
    """A file that another user could have written."""


class Config:
    """The settings in force, as attributes `<section>_<key>`: bytes, seconds, words."""

    log_session_cap: int
    log_segment: int
    log_home_cap: int
    log_free_floor: int
    log_keep: float
    start_shell: str
    start_grace: float
    start_stdin: str
    start_oom_score_adj: int
    terminal_rows: int
    terminal_cols: int
    terminal_detach_key: str
    terminal_history_rows: int
    terminal_enter_delay: float
    terminal_audit_input: str
    terminal_prompts: str
    terminal_prompts_replace: bool
    launcher_enabled: bool
    launcher_spares: int
    launcher_idle: float
    hosts_reply_timeout: float
    hosts_sweep_timeout: float
    hosts_start_timeout: float
    collect_enabled: bool
    collect_interval: float
    cli_color: str
    places_ssh: str
    places_docker: str
    places_podman: str
    places_apptainer: str
    places_singularity: str
    places_python: str
    places_timeout: float
    env_pass: tuple[str, ...]
    signals_file_bytes: int
    signals_answer_grace: float
    signals_claim_limit: int
    signals_lease: float
    signals_release_waits: tuple[float, ...]
    signals_alone_after: int
    signals_park_after: int
    signals_keep_unused: float
    signals_wake_gather: float
    signals_wake_sockets: int
    signals_watched_runners: int
    drain_chars: int
    drain_lines: int
    drain_session_chars: int
    drain_session_lines: int
    drain_line_chars: int
    drain_label_chars: int
    drain_failed_lines: int
    drain_failed_chars: int
    drain_completed_lines: int
    drain_completed_chars: int
    watch_interval: float
    watch_strikes: int
    watch_lifetime: int
    watch_gather_ms: int
    watch_partial_ms: int
    breaker_scope: str
    breaker_max: int
    breaker_window: float
    breaker_cooldown: float
    monitor_limit: float
    monitor_batch_ms: int
    monitor_bucket: int
    monitor_refill_s: float
    monitor_digest_after: float
    monitor_digest_every: float
    monitor_calm: float
    monitor_on_flood: str
    session_heartbeat_floor: float
    session_ready_timeout: float
    session_health_interval: float
    session_health_misses: int
    people_events: tuple[str, ...]
    people_bell: bool
    people_bell_apart: float
    people_apart: float
    people_attended: float
    people_max_age: float
    people_timeout: float
    people_at_once: int
    people_retry_waits: tuple[float, ...]
    restart_delay: float
    restart_delay_max: float
    restart_reset_after: float
    restart_attempts: int
    restart_window: float
    restart_success_codes: tuple[int, ...]
    restart_final_codes: tuple[int, ...]

    def __init__(self, file: str | None = None) -> None:
        self.file = file
        self._sources: dict[str, str] = {}
        for setting in SETTINGS:
            self._set(setting, setting.value(setting.default), "default")
        self._channels: dict[str, CommandChannel | WebhookChannel] = {}

    def changed_ns(self) -> int | None:
        """When the file was last written or put in place, on the wall clock; None where there is none. Not the
        modification time, which a restored backup brings with it."""
        try:
            return None if self.file is None else os.stat(self.file).st_ctime_ns
        except OSError:
            return None

    def _set(self, setting: Setting, value: Value, source: str) -> None:
        setattr(self, setting.attribute, value)
        self._sources[setting.name] = source

    def _add(self, channel: CommandChannel | WebhookChannel, source: str) -> None:
        self._channels[channel.table] = channel
        self._sources[channel.table] = source

    @property
    def people_command(self) -> CommandChannel | None:
        return next((each for each in self._channels.values() if each.kind == "command"), None)

    @property
    def people_webhooks(self) -> dict[str, WebhookChannel]:
        return {each.name: each for each in self._channels.values() if each.kind == "webhook"}

    def channels(self) -> dict[str, CommandChannel | WebhookChannel]:
        """The channels to people that have a table of their own, by its name."""
        return dict(self._channels)

    def to_json(self) -> dict[str, dict[str, object]]:
        """By section and key; channels by the rest of their table's name."""
        found: dict[str, dict[str, object]] = {section: {} for section in _SECTIONS}
        for setting in SETTINGS:
            found[setting.section][setting.key] = getattr(self, setting.attribute)
        for name, channel in self._channels.items():
            found["people"][name.partition(".")[2]] = channel.to_json()
        return found

    def sources(self) -> dict[str, str]:
        """Where each value came from: `default`, `file PATH:LINE` or `env VARIABLE`, by `section.key`."""
        return dict(self._sources)


def load(environ: Mapping[str, str] = os.environ, path: str | None = None) -> Config:
    """Defaults, then the file, then the environment. What is not understood is refused, with its place."""
    file, text = _read(environ, path)
    config = Config(file)
    if file is not None:
        _apply_file(config, file, text)
    _apply_environment(config, environ)
    return config


def config_path(environ: Mapping[str, str]) -> str:
    chosen = environ.get("HOLDFAST_CONFIG")
    if chosen:
        return os.path.abspath(chosen)
    base = environ.get("XDG_CONFIG_HOME", "")
    base = base if os.path.isabs(base) else os.path.join(user_home(environ), ".config")
    return os.path.join(base, "holdfast", "config.toml")


def _read(environ: Mapping[str, str], path: str | None) -> tuple[str | None, str]:
    chosen = path is not None or bool(environ.get("HOLDFAST_CONFIG"))
    file = os.path.abspath(path) if path is not None else config_path(environ)
    try:
        with open(file, encoding="utf-8") as opened:
            _refuse_foreign(file, os.fstat(opened.fileno()))
            return file, opened.read()
    except FileNotFoundError:
        if not chosen:
            return None, ""
        raise ConfigError(file, None, None, "no such file", "write it, or unset HOLDFAST_CONFIG") from None
    except UnicodeDecodeError as error:
        raise ConfigError(file, None, None, f"not UTF-8 at byte {error.start}", "save it as UTF-8") from None
    except OSError as error:
        why = os.strerror(error.errno) if error.errno else str(error)
        raise ConfigError(file, None, None, why, "make it a file that you may read") from None


def _refuse_foreign(file: str, found: os.stat_result) -> None:
    """A setting can be a command that we run: nobody but us (or root, who could anyway) may have written it."""
    if not stat.S_ISREG(found.st_mode):
        return  # /dev/null, or the pipe of a shell
    if found.st_uid not in (os.geteuid(), 0):
        why = f"it is owned by uid {found.st_uid}, not by you"
        fix = f"check its content, then `cp {file} {file}.new && mv -f {file}.new {file}`"
        raise UnsafeConfig(file, None, None, why, fix)
    if found.st_mode & WRITABLE:
        why = f"it is writable by group or others (mode {stat.S_IMODE(found.st_mode):04o})"
        raise UnsafeConfig(file, None, None, why, f"check its content, then `chmod go-w {file}`")


def _apply_file(config: Config, file: str, text: str) -> None:
    import tomllib

    try:
        tables = tomllib.loads(text)
    except ValueError as error:
        # Most are TOMLDecodeErrors; a number of thousands of digits is not.
        line = line_in(str(error), text)
        raise ConfigError(file, line, None, str(error), unquoted(text, line) or "correct the TOML") from None
    except RecursionError:
        raise ConfigError(file, None, None, "nested too deeply", "correct the TOML") from None
    for section, table in tables.items():
        if section not in _SECTIONS:
            homes = [each.section for each in SETTINGS if each.key == section]
            if homes and not isinstance(table, dict):
                fix = "write it below " + " or ".join(f"[{home}]" for home in homes)
                raise ConfigError(file, line_of(text, section), section, "is a key without its section", fix)
            raise unknown(file, line_of(text, section), section, "section", _SECTIONS)
        if not isinstance(table, dict):
            fix = f"write [{section}] and its keys below it"
            raise ConfigError(file, line_of(text, section), section, "is a section, not a value", fix)
        for key, given in table.items():
            line = line_of(text, section, key)
            if section == "people" and key in _CHANNELS:
                from .channels import read_channels

                for channel, line in read_channels(file, text, key, given):
                    config._add(channel, f"file {file}:{line}" if line else f"file {file}")
                continue
            setting = _BY_NAME.get(f"{section}.{key}")
            if setting is None:
                keys = [each.key for each in SETTINGS if each.section == section]
                keys += _CHANNELS if section == "people" else ()
                raise unknown(file, line, f"{section}.{key}", "key", keys)
            try:
                config._set(setting, setting.value(given), f"file {file}:{line}" if line else f"file {file}")
            except BadArgument as error:
                raise ConfigError(file, line, setting.name, error.why, error.fix) from None


def _apply_environment(config: Config, environ: Mapping[str, str]) -> None:
    by_variable = {setting.variable: setting for setting in SETTINGS}
    sections = tuple(f"HOLDFAST_{section.upper()}_" for section in _SECTIONS)
    for variable, given in environ.items():
        if not variable.startswith(sections) or variable == _NO_SETTING:
            continue
        setting = by_variable.get(variable)
        if setting is None:
            raise unknown("environment", None, variable, "variable", list(by_variable))
        try:
            config._set(setting, setting.value(given), f"env {variable}")
        except BadArgument as error:
            raise ConfigError(variable, None, setting.name, error.why, error.fix) from None
