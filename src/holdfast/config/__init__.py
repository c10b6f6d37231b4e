"""The configuration: the defaults of `settings`, then the file, then the environment."""

from __future__ import annotations

import os
import stat
import sys

from ..core.directories import WRITABLE
from ..errors import BadArgument, ConfigError
from ..home import user_home
from .settings import (
    PEOPLE_EVENTS,
    REMOVED,
    SETTINGS,
    Setting,
    Settings,
    line_of,
    prompt_patterns,
    tables,
    unknown,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from .channels import CommandChannel, OwnPlace, WebhookChannel

    Table = CommandChannel | WebhookChannel | OwnPlace


__all__ = (
    "PEOPLE_EVENTS",
    "SETTINGS",
    "Config",
    "Setting",
    "config_path",
    "line_of",
    "load",
    "people_spec",
    "prompt_patterns",
)

_BY_NAME = {(setting.section, setting.key): setting for setting in SETTINGS}
_SECTIONS = tuple(dict.fromkeys(setting.section for setting in SETTINGS))
_VARIABLES = tuple(f"HOLDFAST_{section.upper()}_" for section in _SECTIONS)
_CHANNELS = ("command", "webhook")
# Set for every command; it only looks like a setting of [session].
_NO_SETTING = "HOLDFAST_SESSION_ID"


class UnsafeConfig(ConfigError):
    """A file that another user could have written."""


class Config(Settings):
    """The settings in force, as attributes `<section>_<key>`: bytes, seconds, words."""

    def __init__(self, file: str | None = None) -> None:
        self.file = file
        # Where each setting that was given comes from; all others have their default.
        self._sources: dict[str, str] = {}
        self._tables: dict[str, Table] = {}
        # Settings of earlier releases that were given and have no effect.
        self.ignored: list[str] = []

    def changed_ns(self) -> int | None:
        """When the file was last written or put in place, on the wall clock; None without a file. Not the modification
        time, which a restored backup keeps."""
        try:
            return None if self.file is None else os.stat(self.file).st_ctime_ns
        except OSError:
            return None

    def _set(self, setting: Setting, given: object, source: str) -> None:
        setattr(self, setting.attribute, setting.value(given))
        self._sources[setting.name] = source

    def _add(self, table: Table, source: str) -> None:
        self._tables[table.table] = table
        self._sources[table.table] = source

    @property
    def people_command(self) -> CommandChannel | None:
        return next((each for each in self._tables.values() if each.kind == "command"), None)

    @property
    def people_webhooks(self) -> dict[str, WebhookChannel]:
        return {each.name: each for each in self._tables.values() if each.kind == "webhook"}

    @property
    def own_places(self) -> dict[str, OwnPlace]:
        return {each.name: each for each in self._tables.values() if each.kind == "place"}

    def tables(self) -> dict[str, Table]:
        """Channels to people and places that have a table of their own, by its name."""
        return dict(self._tables)

    def to_json(self) -> dict[str, dict[str, object]]:
        """By section and key; channels and places by the rest of their table's name."""
        found: dict[str, dict[str, object]] = {section: {} for section in _SECTIONS}
        for setting in SETTINGS:
            found[setting.section][setting.key] = getattr(self, setting.attribute)
        for name, table in self._tables.items():
            section, _, rest = name.partition(".")
            found[section][rest] = table.to_json()
        return found

    def sources(self) -> dict[str, str]:
        """Where each value came from: `default`, `file PATH:LINE` or `env VARIABLE`, by `section.key`."""
        return {**{setting.name: "default" for setting in SETTINGS}, **self._sources}


def load(environ: Mapping[str, str] = os.environ, path: str | None = None) -> Config:
    """Defaults, then the file, then the environment. Unknown names and invalid values are errors with their place."""
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


def people_spec(config: Config) -> dict[str, Any]:
    """Which events people are notified of, none without a channel; the program that delivers when no host is there, to
    which the runner adds the home; and the configuration file, for a channel that is added while the session runs."""
    wanted = [
        config.people_events if each.events is None else each.events
        for each in config._tables.values()
        if each.kind != "place"
    ]
    wanted += [config.people_events] if config.people_bell else []
    # `-P`: not from the current directory, where another user may have put modules.
    file = config.file or config_path(os.environ)
    argv = [sys.executable, "-P", "-m", "holdfast.signals.people.program", "--config", file]
    events = sorted({event for events in wanted for event in events})
    return {"events": events, "argv": argv, "config": [file, config.changed_ns() or 0]}


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
    """A setting can be a command that we run: only this user or root may have written the file."""
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
    for section, table in tables(file, text).items():
        removed = [key for key in table if f"{section}.{key}" in REMOVED] if isinstance(table, dict) else []
        if removed:
            config.ignored += [f"{section}.{key}" for key in removed]
            table = {key: given for key, given in table.items() if key not in removed}
            if not table:
                continue
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
            setting = _BY_NAME.get((section, key))
            if setting is None and section == "places" and isinstance(given, dict):
                from .channels import read_place

                place, line = read_place(file, text, key, given)
                config._add(place, f"file {file}:{line}" if line else f"file {file}")
                continue
            if setting is None:
                keys = [each.key for each in SETTINGS if each.section == section]
                keys += _CHANNELS if section == "people" else ()
                raise unknown(file, line, f"{section}.{key}", "key", keys)
            try:
                config._set(setting, given, f"file {file}:{line}" if line else f"file {file}")
            except BadArgument as error:
                raise ConfigError(file, line, setting.name, error.why, error.fix) from None


def _apply_environment(config: Config, environ: Mapping[str, str]) -> None:
    for variable, given in environ.items():
        if not variable.startswith(_VARIABLES) or variable == _NO_SETTING:
            continue
        section, _, key = variable.removeprefix("HOLDFAST_").lower().partition("_")
        setting = _BY_NAME.get((section, key))
        if f"{section}.{key}" in REMOVED:
            config.ignored.append(variable)
            continue
        if setting is None or setting.variable != variable:
            raise unknown("environment", None, variable, "variable", [each.variable for each in SETTINGS])
        try:
            config._set(setting, given, f"env {variable}")
        except BadArgument as error:
            raise ConfigError(variable, None, setting.name, error.why, error.fix) from None
