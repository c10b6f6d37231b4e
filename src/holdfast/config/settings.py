"""Every setting: one row each in `Settings`, with its kind, default, bounds and meaning."""

from __future__ import annotations

import os

from ..errors import BadArgument, ConfigError
from ..model.session import nearest, seconds, shown, size_bytes
from ..places.kinds import KINDS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping
    from typing import Any, Protocol, TypeVar

    Item = TypeVar("Item", int, float, str)
    Number = TypeVar("Number", int, float)
    Value = bool | int | float | str | tuple[int, ...] | tuple[float, ...] | tuple[str, ...]
    Held = TypeVar("Held", bound=Value)

    class Kind(Protocol[Held]):
        def __call__(
            self,
            default: Held,
            meaning: str,
            *,
            low: float = 0,
            high: float | None = None,
            words: tuple[str, ...] = (),
        ) -> Held: ...


KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
MINUTE, HOUR, DAY = 60.0, 3600.0, 86400.0

# A list has no more items than this; the longest that make sense have all events, or all exit codes.
_LONGEST_LIST = 256

SETTINGS: list[Setting] = []


class Setting:
    """One setting. `low` and `high` bound numbers, also those of a list; `words` are the choices of a word.

    A row of `Settings` sets its section and key from its name. The class then has the default as its attribute.
    """

    __slots__ = ("check", "default", "high", "key", "kind", "low", "meaning", "section", "words")

    section: str
    key: str

    def __init__(
        self,
        kind: str,
        check: Callable[[Setting, object], Value],
        default: Value,
        meaning: str,
        low: float = 0,
        high: float | None = None,
        words: tuple[str, ...] = (),
    ) -> None:
        self.kind = kind
        self.check = check
        self.default = default
        self.meaning = meaning
        self.low = low
        self.high = high
        self.words = words

    def __set_name__(self, owner: type, name: str) -> None:
        self.section, _, self.key = name.partition("_")
        SETTINGS.append(self)
        setattr(owner, name, self.default)

    @property
    def name(self) -> str:
        return f"{self.section}.{self.key}"

    @property
    def attribute(self) -> str:
        return f"{self.section}_{self.key}"

    @property
    def variable(self) -> str:
        return f"HOLDFAST_{self.attribute}".upper()

    def value(self, given: object) -> Value:
        """`given`, from the file or the environment, as the setting holds it; else BadArgument."""
        return self.check(self, given)

    def written(self) -> bool | int | str:
        """The default as one would write it in the file."""
        if isinstance(self.default, tuple):
            return ", ".join(_written(item) for item in self.default)
        if isinstance(self.default, float) or self.kind == "size":
            return _written(self.default)
        return self.default


def _written(value: float | str) -> str:
    if isinstance(value, float):
        for unit, factor in (("d", DAY), ("h", HOUR), ("m", MINUTE), ("s", 1)):
            if value >= factor and value % factor == 0:
                return f"{value / factor:g}{unit}"
        return f"{value * 1000:g}ms"
    if isinstance(value, int):
        for unit, factor in (("GiB", GIB), ("MiB", MIB), ("KiB", KIB)):
            if value >= factor and value % factor == 0:
                return f"{value // factor}{unit}"
    return str(value)


# How a given value is checked, by kind.


def _size(setting: Setting, given: object) -> int:
    return _bounded(setting, size_bytes(given, setting.name))


def _duration(setting: Setting, given: object) -> float:
    return _bounded(setting, seconds(given, setting.name))


def _count(setting: Setting, given: object) -> int:
    if isinstance(given, str) and given.removeprefix("-").isdecimal() and len(given) < 20:
        given = int(given)
    if not isinstance(given, int) or isinstance(given, bool):
        raise BadArgument(setting.name, f"{shown(given)} is not a whole number", f"such as {setting.written()}")
    return _bounded(setting, given)


def _switch(setting: Setting, given: object) -> bool:
    given = {"true": True, "false": False}.get(given, given) if isinstance(given, str) else given
    if not isinstance(given, bool):
        raise BadArgument(setting.name, f"{shown(given)} is neither true nor false", "give true or false")
    return given


def _text(setting: Setting, given: object) -> str:
    if not isinstance(given, str):
        raise BadArgument(setting.name, f"{shown(given)} is not text", f'such as "{setting.written()}"')
    return given


def _path(setting: Setting, given: object) -> str:
    given = _text(setting, given)
    if given != setting.default and (not os.path.isabs(given) or "\0" in given):
        such = setting.default or "/path/to/file"
        raise BadArgument(setting.name, f"{shown(given)} is not an absolute path", f'such as "{such}"')
    return given


def _nats(setting: Setting, given: object) -> str:
    given = _text(setting, given)
    scheme, _, rest = given.partition("://")
    # The address is logged: it has no password, and neither has this message.
    if given and (scheme not in ("nats", "tls") or not rest or any(each in "@/" or each.isspace() for each in rest)):
        fix = 'such as "tls://nats.example:4222"; user and password belong in the file of nodes.credentials'
        raise BadArgument(setting.name, "this is not the address of a NATS server", fix)
    return given


def _word(setting: Setting, given: object) -> str:
    given = _text(setting, given)
    if given not in setting.words:
        raise BadArgument(setting.name, f"{shown(given)} is not known", "give " + " or ".join(setting.words))
    return given


def _name(setting: Setting, given: object) -> str:
    given = _text(setting, given)
    if not (given.isascii() and given.isidentifier()):
        raise BadArgument(setting.name, f"{shown(given)} is not the name of a variable", "such as MY_VARIABLE")
    return given


def _prompts(setting: Setting, given: object) -> str:
    given = _text(setting, given)
    prompt_patterns(given, setting.name)
    return given


def _list_of(check: Callable[[Setting, object], Item]) -> Callable[[Setting, object], tuple[Item, ...]]:
    """A list of the file, or text (a variable has no lists) with commas or spaces between the items."""

    def checked(setting: Setting, given: object) -> tuple[Item, ...]:
        items = given.replace(",", " ").split() if isinstance(given, str) else given
        if not isinstance(items, (list, tuple)):
            raise BadArgument(setting.name, f"{shown(given)} is not a list", f'such as "{setting.written()}"')
        if len(items) > _LONGEST_LIST:
            raise BadArgument(setting.name, f"{len(items)} are too many", f"give at most {_LONGEST_LIST}")
        return tuple([check(setting, item) for item in items])

    return checked


def _bounded(setting: Setting, number: Number) -> Number:
    low, high = setting.low, setting.high
    if number < low or (high is not None and number > high):
        bounds = f"at least {low:.10g}" if high is None else f"from {low:.10g} to {high:.10g}"
        raise BadArgument(setting.name, f"{shown(number)} is out of bounds", f"give a number {bounds}")
    return number


def prompt_patterns(text: str, argument: str) -> dict[str, list[str]]:
    """Patterns by the kind of question that they find. BadArgument for one that is invalid, or could take too long."""
    if not text.strip():
        return {}
    from ..runner.features.needs_input.question import Patterns
    from ..runner.features.patterns import BadPattern

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


# The kinds of settings. Each makes a row, and gives the type checker the type of the attribute. Defaults are not
# checked here; a test does that once.


def _kind(name: str, check: Callable[[Setting, object], Held]) -> Kind[Held]:
    return lambda default, meaning, **limits: Setting(name, check, default, meaning, **limits)  # type: ignore[return-value]


size = _kind("size", _size)
duration = _kind("duration", _duration)
durations = _kind("list of durations", _list_of(_duration))
count = _kind("whole number", _count)
codes = _kind("list of exit codes", _list_of(_count))
switch = _kind("true or false", _switch)
text = _kind("text", _text)
path = _kind("absolute path", _path)
nats = _kind("address of a NATS server", _nats)
prompts = _kind("lines of kind=pattern", _prompts)
word = _kind("word", _word)
words = _kind("list of words", _list_of(_word))
names = _kind("list of names of variables", _list_of(_name))


# What people can be notified of: a variant of a signal, or one phase or outcome of `lifecycle`.
# `ended` is every end, `failed` one that was not requested, `limit` one by a limit that was set at the start.
PEOPLE_EVENTS = (
    *("ended", "failed", "limit", "restarting", "event", "watch", "watch_disabled", "overflow", "heartbeat"),
    *("needs_input", "deadline", "ready", "health", "gap", "survivors"),
)


class Settings:
    """The table: a row `<section>_<key>` for each setting."""

    log_session_cap = size(64 * MIB, "Log size kept per session; the oldest output is dropped first.", low=MIB)
    log_segment = size(8 * MIB, "Size of one file of a log.", low=4096)
    log_home_cap = size(4 * GIB, "Log kept in the whole home; finished sessions go first.")
    log_free_floor = size(256 * MIB, "Space on the disk that logs leave free.")
    log_keep = duration(7 * DAY, "How long a session is kept after its exit.")

    start_shell = path("/bin/sh", "Runs a command that is given as text.")
    start_grace = duration(5.0, "Time from the first signal of a stop to the kill.")
    start_stdin = word(
        "closed", "Standard input of a command: `closed` is /dev/null, `open` a pipe.", words=("closed", "open")
    )
    start_oom_score_adj = count(
        1000, "How early the kernel kills the command when memory runs out.", low=-1000, high=1000
    )

    terminal_rows = count(30, "Rows of a terminal without an attached client.", low=1, high=500)
    terminal_cols = count(120, "Columns of a terminal without an attached client.", low=1, high=1000)
    terminal_detach_key = text("ctrl-]", "The key that detaches `hold attach`, or `none`.")
    terminal_history_rows = count(1000, "Rows above the screen that an attach sends.", high=100_000)
    terminal_enter_delay = duration(0.15, "Time between a submitted text and its Enter.", high=5)
    terminal_prompts = prompts(
        "", "More patterns of questions, matched left of the cursor: one a line, such as `question=^Which one> $`."
    )
    terminal_prompts_replace = switch(False, "These patterns replace the built-in ones of the same kind.")

    launcher_enabled = switch(True, "Keep a launcher, so that starts are quick.")
    launcher_spares = count(2, "Number of runners kept ready.", low=1, high=64)
    launcher_idle = duration(10 * MINUTE, "The launcher exits after this time without a start.")

    hosts_reply_timeout = duration(
        10.0, "How long one runner may take to reply; after that a stop ends the command without it."
    )
    hosts_sweep_timeout = duration(2.0, "How long a listing waits for all runners together.")
    hosts_start_timeout = duration(10.0, "How long a start waits for the reply of the runner.")

    collect_enabled = switch(True, "Hosts remove old sessions automatically, as `hold gc` does.")
    collect_interval = duration(10 * MINUTE, "Time between two collections.")

    # `places_<kind>` for each kind of place that has a program.
    locals().update(
        {
            f"places_{word}": text(
                kind.program, f"The program that reaches `{word}:{kind.name}`, with its own options."
            )
            for word, kind in KINDS.items()
            if kind.program
        }
    )
    places_python = text("python3", "The Python, 3.9 or later, that runs a runner in another place.")
    places_timeout = duration(15.0, "How long to wait for a reply from another place.")

    env_pass = names((), "More variables of the host that toolsets pass to commands; secrets are never passed.")

    cli_color = word("auto", "Colours in the terminal.", words=("auto", "always", "never"))

    signals_file_bytes = size(4 * MIB, "Size at which a session's signal file rotates.", low=64 * KIB)
    signals_answer_grace = duration(
        1.0, "How long a waiter has to confirm that it received the end of a session.", high=60
    )
    signals_lease = duration(15 * MINUTE, "How long a live holder keeps a claim without making a call.", low=1)
    signals_release_waits = durations(
        (1.0, 5.0, 30.0, 60.0),
        "Time until a released signal is delivered again: after the first, second, ... release; then always the last.",
    )
    signals_alone_after = count(
        5, "From this delivery on, a signal is delivered alone, if all deliveries before it failed.", low=1
    )
    signals_park_after = count(8, "A signal is parked after this many failed deliveries.", low=1)
    signals_keep_unused = duration(30 * DAY, "How long an unused consumer is kept.", low=60)
    signals_wake_gather = duration(0.2, "How long signals are gathered before a turn starts.", high=60)

    drain_chars = count(8000, "Characters of one message.", low=500, high=1_000_000)
    drain_lines = count(200, "Lines of one message.", low=10, high=100_000)
    drain_session_chars = count(3000, "Characters per session.", low=200, high=1_000_000)
    drain_session_lines = count(50, "Lines per session.", low=1, high=100_000)
    drain_line_chars = count(500, "Characters per line.", low=20, high=100_000)
    drain_label_chars = count(120, "Characters of a name, command, label or pattern.", low=20, high=1000)
    drain_failed_lines = count(30, "Lines of output shown of a failed or killed session.", high=1000)
    drain_failed_chars = count(2000, "Characters of output shown of such a session.", high=100_000)
    drain_completed_lines = count(5, "Lines of output shown of a completed session.", high=1000)
    drain_completed_chars = count(400, "Characters of output shown of such a session.", high=100_000)

    watch_interval = duration(15.0, "Time between two match signals of a session.", low=1)
    watch_strikes = count(3, "Consecutive windows with dropped matches after which watching ends.", low=1)
    watch_lifetime = count(0, "Match signals of a session after which watching ends; 0: no limit.")
    watch_gather_ms = count(100, "Milliseconds during which matches are gathered into one signal.", high=10_000)
    watch_partial_ms = count(
        500, "Milliseconds without output after which an unfinished line is matched.", low=10, high=60_000
    )

    monitor_limit = duration(5 * MINUTE, "How long a monitor runs unless it is persistent.", low=1, high=3600)
    monitor_batch_ms = count(200, "Milliseconds during which lines are gathered into one event.", low=10, high=10_000)
    monitor_bucket = count(10, "Events that may be delivered in a burst.", low=1, high=1000)
    monitor_refill_s = duration(2.0, "Time until one more event is allowed.", low=0.1)
    monitor_digest_after = duration(30.0, "Time with dropped lines until only digests are sent.", low=1)
    monitor_digest_every = duration(MINUTE, "Time between two digests.", low=1)
    monitor_calm = duration(MINUTE, "Time without dropped lines until all lines are sent again.", low=1)
    monitor_on_flood = word("digest", "Too many lines: send digests, or stop the monitor.", words=("digest", "stop"))

    session_heartbeat_floor = duration(MINUTE, "A shorter heartbeat is raised to this.", low=1)
    session_ready_timeout = duration(MINUTE, "How long a session may take to become ready.", low=0.1)
    session_health_interval = duration(30.0, "Time between two health checks.", low=5)
    session_health_misses = count(3, "Consecutive failed checks that make a session unhealthy.", low=1, high=100)

    people_events = words(
        ("failed", "limit", "needs_input", "overflow"),
        "Which events people are notified of, unless a channel has its own list.",
        words=PEOPLE_EVENTS,
    )
    people_bell = switch(False, "Ring the bell of attached terminals.")
    people_bell_apart = duration(5.0, "Time between two rings.")
    people_apart = duration(10.0, "Time between two notices about a session; the rest are joined.")
    people_attended = duration(MINUTE, "A person who typed or focused the session within this time is not notified.")
    people_max_age = duration(HOUR, "People are not notified of signals older than this.", low=1)
    people_timeout = duration(10.0, "How long a command or a webhook may take.", low=0.1, high=300)
    people_retry_waits = durations(
        (1.0, 5.0, 30.0, 120.0, 600.0),
        "Time until a failed webhook is tried again; after the last try it is abandoned.",
    )

    restart_delay = duration(1.0, "Time until the first restart; it doubles with each.")
    restart_delay_max = duration(MINUTE, "The longest delay between restarts.")
    restart_reset_after = duration(MINUTE, "Running this long resets the delay.")
    restart_attempts = count(5, "Starts within the window; then the session ends.", low=1, high=10_000)
    restart_window = duration(10 * MINUTE, "The window in which starts are counted.", low=1)
    restart_success_codes = codes((0,), "Exit codes that count as success.", high=255)
    restart_final_codes = codes((125,), "Exit codes after which the command is not restarted.", high=255)

    nodes_url = nats("", "A NATS server that `hold fabric` did not start, through which this home sees its nodes.")
    nodes_credentials = path(
        "", "The file with the login of this home there: `.creds`, an nkey seed, or `USER:PASSWORD`."
    )

    server_connections = count(512, "Limit of authenticated connections to `hold serve`.", low=1)
    server_connections_per_peer = count(128, "Limit of authenticated connections from one address.", low=1)
    server_observers_per_session = count(256, "Observers attached to one session.", low=1)
    server_sse_readers = count(64, "Readers of `/v1/events`.", low=1)
    server_header_bytes = size(16 * KIB, "Largest request line with its headers.", low=KIB, high=MIB)
    server_header_time = duration(10.0, "Time a client has to send the request line and headers.", low=0.01)
    server_body_bytes = size(MIB, "Largest request body.", low=KIB, high=64 * MIB)
    server_body_time = duration(10.0, "Time a client has to send the body.", low=0.01)
    server_body_depth = count(32, "Deepest nesting of a JSON body.", low=2, high=100)
    server_frame_bytes = size(MIB, "Largest WebSocket message from a client.", low=KIB, high=64 * MIB)
    server_unacked_bytes = size(
        512 * KIB, "Limit of output sent to a viewer that has not acknowledged it.", low=64 * KIB
    )
    server_lag_bytes = size(4 * MIB, "An observer further behind is shown the screen again.", low=64 * KIB)
    server_attach_time = duration(10.0, "Time from an upgrade to the screen.", low=0.01)
    server_ping_interval = duration(20.0, "Time between two pings of a WebSocket client.", low=0.01)
    server_pong_wait = duration(20.0, "Time a client has to answer a ping.", low=0.01)
    server_long_poll = duration(60.0, "The longest time that a request may ask to wait.", low=1, high=600)
    server_search_time = duration(2.0, "Time for one page of a search.", low=0.1, high=60)
    server_search_workers = count(2, "Searches at a time.", low=1, high=64)
    server_starts_per_minute = count(600, "Starts per minute with one token.", low=1)
    server_tickets = count(1024, "Limit of issued tickets that have not been used.", low=1)
    server_tokens = count(1000, "Tokens and links of a home.", low=1)


# Settings of earlier releases that have no effect any more. A file that has one still loads.
REMOVED = frozenset(
    (
        *("breaker.cooldown", "breaker.max", "breaker.scope", "breaker.window", "people.at_once"),
        *("signals.claim_limit", "signals.wake_sockets", "signals.watched_runners", "terminal.audit_input"),
    )
)


# Files of TOML: their tables, and messages with the line of a key and the nearest name that is known.


def tables(file: str, text: str) -> dict[str, Any]:
    import tomllib

    try:
        return tomllib.loads(text)
    except ValueError as error:
        # Most are TOMLDecodeErrors; a number of thousands of digits is not.
        line = line_in(str(error), text)
        fix = unquoted(text, line) or "correct the TOML"
        raise ConfigError(file, line, None, f"is not TOML: {error}", fix) from None
    except RecursionError:
        raise ConfigError(file, None, None, "nested too deeply", "correct the TOML") from None


def checked_table(
    file: str, text: str, path: tuple[str, ...], given: object, keys: tuple[str, ...] | None
) -> Mapping[str, Any]:
    """The table at `path`, if it is one and has no other keys; `keys` is None where they are names."""
    name = ".".join(path)
    if not isinstance(given, dict):
        fix = f"write [{name}] and its keys below it" if keys else f"write [{name}.NAME] and its keys below it"
        raise ConfigError(file, nearest_line(text, *path), ascii(name)[1:-1][:120], "is a table, not a value", fix)
    for key in given if keys else ():
        if key not in (keys or ()):
            what = "key" if path else "section"
            raise unknown(file, nearest_line(text, *path, key), ".".join((*path, key)), what, keys or ())
    return given


def unknown(file: str, line: int | None, name: str, what: str, known: Collection[str]) -> ConfigError:
    word = name if what == "variable" else name.rpartition(".")[2]
    return ConfigError(file, line, ascii(name)[1:-1][:120], f"unknown {what}", nearest_or_all(word, known))


def nearest_or_all(word: str, known: Collection[str]) -> str:
    near = nearest(word, known)
    return f"did you mean {near}?" if near else "known are " + ", ".join(known)


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


def nearest_line(text: str, *path: str) -> int | None:
    """The line of the table or key at `path`, else of the innermost table around it that can be found."""
    for end in range(len(path), 0, -1):
        line = line_of(text, ".".join(path[: end - 1]), path[end - 1]) if end > 1 else line_of(text, path[0])
        if line is not None:
            return line
    return None


def line_in(message: str, text: str) -> int | None:
    """The line that the TOML parser names; `at end of document` is the last."""
    digits = message.partition("at line ")[2].partition(",")[0]
    if digits.isdecimal():
        return int(digits)
    return text.count("\n") + 1 if "end of document" in message else None


def unquoted(text: str, line: int | None) -> str | None:
    """The fix for a line such as `grace = 5s`; None for any other."""
    written = "" if line is None else text.split("\n")[line - 1]
    key, _, value = written.partition("#")[0].partition("=")
    value = value.strip()
    if not value or not value.isascii() or not value.replace(".", "").replace("-", "").replace("/", "").isalnum():
        return None
    return f'write {key.strip()[:80]} = "{value[:80]}": text, sizes and durations need quotes'


def _bare(name: str) -> str:
    return ".".join(part.strip().strip("\"'") for part in name.split("."))
