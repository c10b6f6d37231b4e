"""The one configuration file. Every setting has a type, a default and a meaning here, and nowhere else."""

from __future__ import annotations

import os

from .errors import BadArgument, ConfigError
from .home import user_home
from .model.units import seconds, shown, size_bytes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    Value = bool | int | float | str

SIZE = "size"
DURATION = "duration"
SWITCH = "true or false"
COUNT = "whole number"
PATH = "absolute path"
WORD = "word"
TEXT = "text"
PROMPTS = "lines of kind=pattern"


class Setting:
    """One setting. `low` and `high` bound numbers, `words` are the choices of a word."""

    __slots__ = ("default", "high", "key", "kind", "low", "meaning", "section", "words")

    def __init__(
        self,
        section: str,
        key: str,
        kind: str,
        default: Value,
        meaning: str,
        *,
        low: float = 0,
        high: float | None = None,
        words: tuple[str, ...] = (),
    ) -> None:
        self.section = section
        self.key = key
        self.kind = kind
        self.default = default
        self.meaning = meaning
        self.low = low
        self.high = high
        self.words = words

    @property
    def name(self) -> str:
        return f"{self.section}.{self.key}"

    @property
    def attribute(self) -> str:
        return f"{self.section}_{self.key}"

    @property
    def variable(self) -> str:
        return f"HOLDFAST_{self.section}_{self.key}".upper()

    def value(self, given: object) -> Value:
        """`given`, from the file or the environment, as what the setting holds; else BadArgument."""
        if self.kind == SIZE:
            return self._bounded(size_bytes(given, self.name))
        if self.kind == DURATION:
            return self._bounded(seconds(given, self.name))
        if self.kind == COUNT:
            if isinstance(given, str) and given.removeprefix("-").isdecimal() and len(given) < 20:
                given = int(given)
            if not isinstance(given, int) or isinstance(given, bool):
                raise BadArgument(self.name, f"{shown(given)} is no whole number", f"such as {self.default}")
            return self._bounded(given)
        if self.kind == SWITCH:
            given = {"true": True, "false": False}.get(given, given) if isinstance(given, str) else given
            if not isinstance(given, bool):
                raise BadArgument(self.name, f"{shown(given)} is neither true nor false", "give true or false")
            return given
        if not isinstance(given, str):
            raise BadArgument(self.name, f"{shown(given)} is no text", f'such as "{self.default}"')
        if self.kind == PATH and (not os.path.isabs(given) or "\0" in given):
            raise BadArgument(self.name, f"{shown(given)} is no absolute path", f'such as "{self.default}"')
        if self.kind == WORD and given not in self.words:
            raise BadArgument(self.name, f"{shown(given)} is not known", "give " + " or ".join(self.words))
        if self.kind == PROMPTS:
            prompt_patterns(given, self.name)
        return given

    def _bounded(self, number: int | float) -> int | float:
        if number < self.low or (self.high is not None and number > self.high):
            bounds = f"at least {self.low:.10g}" if self.high is None else f"from {self.low:.10g} to {self.high:.10g}"
            raise BadArgument(self.name, f"{shown(number)} is out of bounds", f"give a number {bounds}")
        return number


SETTINGS = (
    Setting("log", "session_cap", SIZE, "64MiB", "Log kept per session; the oldest goes first.", low=1 << 20),
    Setting("log", "segment", SIZE, "8MiB", "Size of one file of a log.", low=4096),
    Setting("log", "home_cap", SIZE, "4GiB", "Log kept in the whole home; finished sessions go first."),
    Setting("log", "free_floor", SIZE, "256MiB", "Space on the disk that logs leave free."),
    Setting("log", "keep", DURATION, "7d", "How long a session is kept after its exit."),
    Setting("start", "shell", PATH, "/bin/sh", "Runs a command that is given as text."),
    Setting("start", "grace", DURATION, "5s", "Time from the polite signal of a stop to the kill."),
    Setting(
        "start",
        "stdin",
        WORD,
        "closed",
        "Input of a command: none, or a pipe.",
        words=("closed", "open"),
    ),
    Setting(
        "start",
        "oom_score_adj",
        COUNT,
        1000,
        "How early the kernel takes the command when memory runs out.",
        low=-1000,
        high=1000,
    ),
    Setting("terminal", "rows", COUNT, 30, "Height of a terminal that nobody looks at.", low=1, high=500),
    Setting("terminal", "cols", COUNT, 120, "Width of a terminal that nobody looks at.", low=1, high=1000),
    Setting("terminal", "detach_key", TEXT, "ctrl-]", "What `hold attach` listens to, or `none`."),
    Setting(
        "terminal", "history_rows", COUNT, 1000, "Rows above the screen that an attach brings.", low=0, high=100_000
    ),
    Setting("terminal", "enter_delay", DURATION, "150ms", "Time between a submitted text and its Enter.", high=5),
    Setting(
        "terminal",
        "audit_input",
        WORD,
        "off",
        "Keep what is typed, beside who typed when; never while the terminal shows none of it.",
        words=("off", "full"),
    ),
    Setting(
        "terminal",
        "prompts",
        PROMPTS,
        "",
        "What else a question looks like, left of the cursor: a line each, such as `question=^Which one> $`.",
    ),
    Setting("terminal", "prompts_replace", SWITCH, False, "Patterns replace the ones we know of their kind."),
    Setting("launcher", "enabled", SWITCH, True, "Keep a launcher, so that starts are quick."),
    Setting("launcher", "spares", COUNT, 2, "Runners that wait, forked and warm.", low=1, high=64),
    Setting("launcher", "idle", DURATION, "10m", "The launcher leaves after this time without a start."),
    Setting(
        "hosts", "reply_timeout", DURATION, "10s", "How long one runner may take to answer before a stop acts past it."
    ),
    Setting("hosts", "sweep_timeout", DURATION, "2s", "How long all runners together may take in a listing."),
    Setting("hosts", "start_timeout", DURATION, "10s", "How long a start may take until it is answered."),
    Setting("collect", "enabled", SWITCH, True, "Hosts remove old sessions on their own, as `hold gc` does."),
    Setting("collect", "interval", DURATION, "10m", "Time between two collections."),
    Setting("cli", "color", WORD, "auto", "Colours in the terminal.", words=("auto", "always", "never")),
)

_BY_NAME = {setting.name: setting for setting in SETTINGS}
_SECTIONS = tuple(dict.fromkeys(setting.section for setting in SETTINGS))


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

    def __init__(self, file: str | None = None) -> None:
        self.file = file
        self._sources: dict[str, str] = {}
        for setting in SETTINGS:
            self._set(setting, setting.value(setting.default), "default")

    def _set(self, setting: Setting, value: Value, source: str) -> None:
        setattr(self, setting.attribute, value)
        self._sources[setting.name] = source

    def to_json(self) -> dict[str, dict[str, Value]]:
        """By section and key."""
        found: dict[str, dict[str, Value]] = {section: {} for section in _SECTIONS}
        for setting in SETTINGS:
            found[setting.section][setting.key] = getattr(self, setting.attribute)
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


def prompt_patterns(text: str, argument: str) -> dict[str, list[str]]:
    """Patterns by the kind of question they tell; BadArgument for one that is none, or that could take too long."""
    if not text.strip():
        return {}
    from .runner.prompts import BadPattern, Patterns

    found: dict[str, list[str]] = {}
    for line in text.splitlines():
        if line.strip():
            kind, _, pattern = line.partition("=")
            found.setdefault(kind.strip(), []).append(pattern)
    try:
        Patterns(found)
    except BadPattern as problem:
        raise BadArgument(argument, str(problem), "give lines such as question=^Which one> $") from None
    return found


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


def _apply_file(config: Config, file: str, text: str) -> None:
    import tomllib

    try:
        tables = tomllib.loads(text)
    except ValueError as error:
        # Most are TOMLDecodeErrors; a number of thousands of digits is not.
        raise ConfigError(file, _line_in(str(error), text), None, str(error), "correct the TOML") from None
    except RecursionError:
        raise ConfigError(file, None, None, "nested too deeply", "correct the TOML") from None
    for section, table in tables.items():
        if section not in _SECTIONS:
            raise _unknown(file, line_of(text, section), section, "section", _SECTIONS)
        if not isinstance(table, dict):
            fix = f"write [{section}] and its keys below it"
            raise ConfigError(file, line_of(text, section), section, "is a section, not a value", fix)
        for key, given in table.items():
            line = line_of(text, section, key)
            setting = _BY_NAME.get(f"{section}.{key}")
            if setting is None:
                keys = [each.key for each in SETTINGS if each.section == section]
                raise _unknown(file, line, f"{section}.{key}", "key", keys)
            try:
                config._set(setting, setting.value(given), f"file {file}:{line}" if line else f"file {file}")
            except BadArgument as error:
                raise ConfigError(file, line, setting.name, error.why, error.fix) from None


def _apply_environment(config: Config, environ: Mapping[str, str]) -> None:
    by_variable = {setting.variable: setting for setting in SETTINGS}
    sections = tuple(f"HOLDFAST_{section.upper()}_" for section in _SECTIONS)
    for variable, given in environ.items():
        if not variable.startswith(sections):
            continue
        setting = by_variable.get(variable)
        if setting is None:
            raise _unknown("environment", None, variable, "variable", list(by_variable))
        try:
            config._set(setting, setting.value(given), f"env {variable}")
        except BadArgument as error:
            raise ConfigError(variable, None, setting.name, error.why, error.fix) from None


def _unknown(file: str, line: int | None, name: str, what: str, known: list[str] | tuple[str, ...]) -> ConfigError:
    from difflib import get_close_matches

    word = name if what == "variable" else name.rpartition(".")[2]
    near = get_close_matches(word[:80], known, 1)
    fix = f"did you mean {near[0]}?" if near else "known are " + ", ".join(known)
    return ConfigError(file, line, ascii(name)[1:-1][:120], f"unknown {what}", fix)


def line_of(text: str, section: str, key: str | None = None) -> int | None:
    """The line of `key` in `section` (or of the section), for messages; None if written unusually."""
    wanted = section if key is None else f"{section}.{key}"
    table = ""
    for number, line in enumerate(text.split("\n"), 1):
        line = line.strip()
        if line.startswith("["):
            name = table = _bare(line.strip("[] \t").partition("]")[0])
        else:
            name = _bare(line.partition("=")[0])
            name = f"{table}.{name}" if table else name
            if name == section:
                # An inline table: the key is on the same line.
                return number
        if name == wanted or name.startswith(wanted + "."):
            return number
    return None


def _bare(name: str) -> str:
    return ".".join(part.strip().strip("\"'") for part in name.split("."))


def _line_in(message: str, text: str) -> int | None:
    """The line that the TOML parser names; `at end of document` is the last."""
    digits = message.partition("at line ")[2].partition(",")[0]
    if digits.isdecimal():
        return int(digits)
    return text.count("\n") + 1 if "end of document" in message else None
