"""The options of a start: one row each, from which the check of a request, the command line and the documents are made.

`StartOptions` has their types, for callers of the Python API.
"""

from __future__ import annotations

from ..errors import BadArgument
from .session import seconds, shown, size_bytes

TYPE_CHECKING = False

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any, Literal
    from typing import TypedDict as TypedDict  # noqa: PLC0414  (for the conditions of a wait, too)

    Duration = float | str
    Size = int | str
else:

    class TypedDict:
        """Stands in for the real one, which takes longer to import than everything else here together."""

        def __init_subclass__(cls, total: bool = True) -> None:
            pass


class StartOptions(TypedDict, total=False):
    name: str | None
    description: str | None
    owner: str | None
    labels: Mapping[str, str]
    kind: str
    key: str | None
    replace: bool
    place: str
    cwd: str | None
    env: Mapping[str, str | None]
    clean_env: bool
    shell: str | Sequence[str]
    argv0: str | None
    tty: bool | Mapping[str, Any]
    stdin: Literal["closed", "open"]
    input: str | bytes | None
    merge_stderr: bool
    pass_fds: Sequence[int] | Mapping[int, int | None]
    umask: int
    limits: Mapping[str, int | tuple[int, int]]
    oom_score_adj: int
    metadata: Mapping[str, Any]
    size: tuple[int, int] | str
    timeout: Duration | None
    idle_timeout: Duration | None
    ttl: Duration | None
    lifetime: Literal["detached", "owner", "call"]
    owner_pid: int | None
    memory: Size | None
    grace: Duration
    stop_ladder: Sequence[Mapping[str, Any]] | None
    restart: str | Mapping[str, Any]
    log_cap: Size
    notify: Literal["never", "exit", "failure", "auto"]
    watch: str | Mapping[str, Any] | Sequence[str | Mapping[str, Any]]
    monitor: bool | Mapping[str, Any]
    heartbeat: Duration | None
    soft: Duration | None
    ready: str | Sequence[Any] | Mapping[str, Any] | None
    health: str | Mapping[str, Any] | None
    notify_people: bool | None


# What an option takes. Each of these is checked in the same way everywhere.
TEXT, DURATION, SIZE, NUMBER, SWITCH, CHOICE = "text", "duration", "size", "number", "switch", "choice"
# These have rules of their own, in `sessions/start_request.py` and `sessions/feature_options.py`.
PAIRS, OTHER = "pairs", "other"

# The groups of the command line.
IDENTITY = "identity"
ENVIRONMENT = "environment"
TERMINAL = "terminal (each of these implies --tty)"
END = "limits and end"
SIGNALS = "signals (see `hold signals`)"


class Option:
    """One option. `help` is for the command line, which does not have an option without it; `doc` is for the Python
    API."""

    __slots__ = (
        *("again", "default", "doc", "feature", "flag", "group", "help", "high", "low", "metavar"),
        *("name", "repeated", "setting", "takes", "words"),
    )

    def __init__(
        self,
        name: str,
        takes: str,
        group: str,
        help: str,
        doc: str,
        *,
        flag: str = "",
        metavar: str | None = None,
        words: tuple[str, ...] = (),
        low: int = 0,
        high: int = 0,
        default: Any = None,
        setting: str | None = None,
        repeated: bool = False,
        feature: bool = False,
        again: bool = True,
    ) -> None:
        self.name = name
        self.takes = takes
        self.group = group
        self.help = help
        self.doc = doc
        self.flag = flag or ("--" + name.replace("_", "-") if help else "")
        self.metavar = metavar
        self.words = words
        # Bounds of a number, and of the length of a text.
        self.low = low
        self.high = high
        self.default = default
        # The setting that has the default.
        self.setting = setting
        # Whether the flag may be given more than once.
        self.repeated = repeated
        # Whether the runner watches for something because of it.
        self.feature = feature
        # Whether `restart` takes the value from the record of the session.
        self.again = again

    def check(self, value: object) -> Any:
        """`value` as the spec has it; else BadArgument. One with rules of its own passes."""
        return _CHECKS[self.takes](self, value) if self.takes in _CHECKS else value


def _text(option: Option, value: object) -> str:
    if not isinstance(value, str):
        raise BadArgument(option.name, f"{shown(value)} is not text", f"give text of 1 to {option.high} characters")
    if not value or len(value) > option.high:
        raise BadArgument(option.name, f"has {len(value)} characters", f"give 1 to {option.high}")
    return value


def _duration(option: Option, value: object) -> float:
    found = seconds(value, option.name)
    if not found and option.low:
        raise BadArgument(option.name, "must be above 0", "leave it out for no limit, or give a time such as 60 or 5m")
    return found


def _size(option: Option, value: object) -> int:
    found = size_bytes(value, option.name)
    if found < option.low:
        raise BadArgument(
            option.name, f"{shown(value)} is too small", f"give at least {option.low >> 20}M, or leave it out"
        )
    return found


def _number(option: Option, value: object) -> int:
    return whole(option.name, value, option.low, option.high)


def _switch(option: Option, value: object) -> bool:
    if not isinstance(value, bool):
        raise BadArgument(option.name, f"{shown(value)} is neither True nor False", "give True or False")
    return value


def _choice(option: Option, value: object) -> str:
    if value not in option.words:
        words = ", ".join(option.words)
        raise BadArgument(option.name, f"{shown(value)} is not one of {words}", f"give one of {words}")
    return str(value)


def whole(argument: str, value: object, low: int, high: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        why = f"{shown(value)} is not a whole number from {low} to {high}"
        raise BadArgument(argument, why, f"give a number from {low} to {high}")
    return value


_CHECKS = {TEXT: _text, DURATION: _duration, SIZE: _size, NUMBER: _number, SWITCH: _switch, CHOICE: _choice}

_PID_MAX = (1 << 31) - 1

_ROWS = (
    Option(
        *("name", OTHER, IDENTITY, "a name to find it by; free again when it ends"),
        "To find it by. One live session per name; a taken one is `name-taken`. Free again when the session ends.",
    ),
    Option(
        *("description", TEXT, IDENTITY, "what it is for"),
        "What it is for. Default: the name, else the command.",
        metavar="TEXT",
        high=1024,
    ),
    Option(
        *("owner", OTHER, IDENTITY, "the agent, conversation or task that it belongs to"),
        "The agent, conversation or task that it belongs to. Opaque text to filter by.",
        metavar="KEY",
    ),
    Option(
        *("labels", PAIRS, IDENTITY, "a label; can be repeated", "More text to filter by, at most 64 pairs."),
        flag="--label",
        metavar="K=V",
        repeated=True,
        default={},
    ),
    Option(
        *("kind", TEXT, IDENTITY, "the kind of session (default: local_bash, or terminal)"),
        "The kind of session. Default: `local_bash`, `terminal` with `tty`, `monitor` with `monitor`.",
        high=64,
    ),
    Option(
        *("key", TEXT, IDENTITY, "one session per key: while it runs, a second start with the key returns it"),
        "One live session per key: a second start with the same key and command returns the first session.",
        high=1024,
    ),
    Option(
        *("replace", SWITCH, IDENTITY, "stop the session that holds the key or name first"),
        "Stop the live holder of the key (or name) first, and take its place.",
        again=False,
    ),
    Option(
        *("place", OTHER, ENVIRONMENT, "another machine or container, such as ssh:HOST or docker:NAME"),
        "Where it runs: `local` (default), a kind of place and a name, such as `ssh:HOST` or `docker:NAME`, or a place "
        "of the settings.",
        metavar="PLACE",
    ),
    Option(
        *("cwd", OTHER, ENVIRONMENT, "its working directory (default: this one, or the default of the place)"),
        "Its working directory. Default: that of the caller, or the default of the place.",
        metavar="DIR",
    ),
    Option(
        *("env", PAIRS, ENVIRONMENT, "set a variable"),
        "Variables on top of the caller's; None removes one. Values are never stored.",
        metavar="K=V",
        repeated=True,
        again=False,
    ),
    Option(
        *("clean_env", SWITCH, ENVIRONMENT, "start with an empty environment; only --env sets variables"),
        "Start with an empty environment instead of the caller's.",
        default=False,
    ),
    Option(
        *("shell", OTHER, ENVIRONMENT, "the shell that runs the one line after `--`"),
        "Runs a command given as text. Default: the setting `start.shell`.",
        metavar="PATH",
        setting="start_shell",
    ),
    Option("argv0", OTHER, ENVIRONMENT, "", "What the program sees as its own name."),
    Option(
        *("tty", SWITCH, ENVIRONMENT, "run it on a terminal of its own, for `hold attach`, keys and screen"),
        "True: on a terminal of its own; or a mapping of `term`, `size_policy` (latest, smallest, fixed), `echo`, "
        "`clipboard`, `colors`.",
    ),
    Option(
        *("stdin", CHOICE, ENVIRONMENT),
        "closed: /dev/null (default); open: a pipe for `hold send`; `hold run` passes on its own pipe or file",
        "`closed` is /dev/null, `open` a pipe for `send`. Default: the setting `start.stdin`.",
        words=("closed", "open"),
    ),
    Option(
        *("input", OTHER, ENVIRONMENT, "its whole input, from a file, or from standard input with `-`"),
        "All of its input, at most 8 MiB; then its stdin is closed.",
        metavar="FILE",
        again=False,
    ),
    Option(
        *("merge_stderr", SWITCH, ENVIRONMENT, "one stream for stdout and stderr", "One stream, `stdout`, for both."),
        default=False,
    ),
    Option(
        *("pass_fds", OTHER, ENVIRONMENT, "pass this open descriptor to the command"),
        "Open descriptors of the caller that the command gets, under the same numbers or those of a mapping; "
        "None there is the file `report` in its session's directory.",
        flag="--pass-fd",
        metavar="N",
        repeated=True,
        low=3,
        again=False,
    ),
    Option("umask", NUMBER, ENVIRONMENT, "", "Default: the caller's.", high=0o777),
    Option(
        *("limits", OTHER, ENVIRONMENT, ""),
        'Resource limits by their short names, such as `{"nofile": 1024}` or `(soft, hard)`.',
        default={},
    ),
    Option(
        *("oom_score_adj", NUMBER, ENVIRONMENT, ""),
        "How early the kernel kills it when memory runs out. Default: the setting `start.oom_score_adj`.",
        setting="start_oom_score_adj",
        low=-1000,
        high=1000,
    ),
    Option(
        *("metadata", OTHER, ENVIRONMENT, "", "Any JSON object, at most 64 KiB; it is part of the snapshot."),
        default={},
    ),
    Option(
        *("size", OTHER, TERMINAL, "its size (default: 120x30)"),
        "Rows and columns of the terminal, or text such as `80x24` (columns first). Default: the settings "
        "`terminal.rows` and `terminal.cols`.",
        metavar="COLSxROWS",
    ),
    Option(
        *("timeout", DURATION, END, "end it after this time", "End it after this time, cause `overall_timeout`."),
        metavar="T",
        low=1,
    ),
    Option(
        *("idle_timeout", DURATION, END, "end it after this time without output"),
        "End it after this time without output, cause `idle_timeout`.",
        metavar="T",
        low=1,
    ),
    Option(
        *("ttl", DURATION, END, "end it after this time; recorded as ttl, not as a timeout"),
        "End it after this time, cause `ttl`: for a host that lends sessions out and must tell this from a timeout.",
        metavar="T",
        low=1,
    ),
    Option(
        *("lifetime", CHOICE, END),
        "detached: until it ends (default); owner: until the owning process ends; call: until `hold run` ends",
        "`detached`: until it ends (default). `owner`: until a process ends. `call`: until its `run` ends.",
        words=("detached", "owner", "call"),
        again=False,
    ),
    Option(
        *("owner_pid", NUMBER, END, "the owning process (default: the caller of `hold`)"),
        'The process for `lifetime="owner"`. Default: the caller.',
        metavar="PID",
        low=1,
        high=_PID_MAX,
        again=False,
    ),
    Option(
        *("memory", SIZE, END, "end it when it needs more memory, such as 2G"),
        "Limit for the whole tree, at least 8M; the cause is then `out_of_memory`. Needs control groups, else "
        "`unsupported`.",
        metavar="SIZE",
        # The kernel lays out the arguments, 6 MiB at most, while the new process still shares its runner's memory.
        low=8 << 20,
    ),
    Option(
        *("grace", DURATION, END, "how long a stop waits before it kills"),
        "How long a stop waits before it kills. Default: the setting `start.grace`.",
        metavar="T",
        setting="start_grace",
    ),
    Option(
        *("stop_ladder", OTHER, END, "the steps of a stop, such as INT:2s,TERM/group:5s,KILL/tree"),
        'The steps of a stop instead of the usual: `{"signal": "INT", "target": "command", "wait_s": 2}` each.',
        metavar="RUNGS",
    ),
    Option(
        *("restart", OTHER, END, "when to start the command again after it has ended"),
        "`never`, `on-failure`, `always`, or a dict with `policy`, `delay`, `delay_max`, `reset_after`, `attempts`, "
        "`window`, `success_codes`, `final_codes`, `reset_on_ready`.",
        words=("never", "on-failure", "always"),
        feature=True,
    ),
    Option(
        *("log_cap", SIZE, END, "how much of its output is kept"),
        "How much of its output is kept. Default: the setting `log.session_cap`.",
        metavar="SIZE",
        setting="log_session_cap",
        # A cap must hold a few reads, or dropping would take what was just written.
        low=1 << 20,
    ),
    Option(
        *("notify", CHOICE, SIGNALS),
        "which endings become signals: never, exit (all, default of start), failure, auto (those that no call waited "
        "for, default of run)",
        "Which endings become a signal: `never`, `exit` (all, default of `start`), `failure`, `auto` (those that no "
        "call waited for, default of `run`).",
        words=("never", "exit", "failure", "auto"),
        default="exit",
    ),
    Option(
        *("watch", OTHER, SIGNALS),
        "signal lines that contain this text or match /regex/ or /regex/i; can be repeated",
        "Patterns: a line that matches is a signal. Text, `/regex/` or `/regex/i`, or a dict with `literal` or "
        "`regex`, `stream`, `ignore_case`, `once`, `before`.",
        metavar="PATTERN",
        repeated=True,
        feature=True,
        again=False,
    ),
    Option(
        *("monitor", SWITCH, SIGNALS),
        "signal every line, in batches; the session is ended after 5 minutes, or after --timeout",
        "Each line is a signal, gathered and paced: true, or a dict with `include`, `exclude`, `persistent`, "
        "`on_flood`.",
        feature=True,
        again=False,
    ),
    Option(
        *("heartbeat", DURATION, SIGNALS, "send a progress signal every T (minimum 60s)"),
        "A progress signal with the new output this often, at most once a minute.",
        metavar="T",
        low=1,
        feature=True,
    ),
    Option(
        *("soft", DURATION, SIGNALS, "signal when it runs longer than this; it is not ended"),
        "A signal when it runs longer than this; it is not ended.",
        metavar="T",
        low=1,
        feature=True,
    ),
    Option(
        *("ready", OTHER, SIGNALS),
        "signal when it is ready: port:N listens, http:URL answers, line:PATTERN is printed; repeated: all of them",
        "When it is ready: `port:N`, `http:URL`, `line:PATTERN`, a list of them, or a dict with `all` or `any`, "
        "`timeout`, `owner_check`.",
        metavar="SPEC",
        repeated=True,
        feature=True,
        again=False,
    ),
    Option(
        *("health", OTHER, SIGNALS, "signal when the health check fails or recovers: port:N, http:URL or command:LINE"),
        "A check that is repeated: `port:N`, `http:URL`, or a dict with `command`, `interval`, `misses`.",
        metavar="SPEC",
        feature=True,
        again=False,
    ),
    Option(
        *("notify_people", SWITCH, SIGNALS, "notify people too, by the configured channels"),
        "Notify people of its end in any case (true), or of nothing (false), by the configured channels.",
    ),
)

OPTIONS = {option.name: option for option in _ROWS}
START_OPTIONS = frozenset(OPTIONS)
# Those that make a running session send signals.
SIGNAL_FEATURES = tuple(option.name for option in _ROWS if option.feature and option.group == SIGNALS)
