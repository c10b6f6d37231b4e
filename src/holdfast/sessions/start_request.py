"""From a command and its options to a start request. Everything is checked here, before anything exists."""

from __future__ import annotations

import os

from .. import __version__
from ..config import people_spec, prompt_patterns
from ..core import clock, processes, sockets
from ..errors import BadArgument, BadSize, EmptyCommand, TooLarge, Unsupported
from ..home import check_labels, check_name, check_owner, new_id
from ..model import seconds
from ..model.options import OPTIONS, START_OPTIONS, whole
from ..model.session import shown
from ..places import kinds

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence
    from typing import Any

    from ..config import Config
    from ..model.options import StartOptions


INPUT_MAX_BYTES = 8 << 20
_TARGETS = ("command", "group", "session", "tree")
_METADATA_CHARACTERS = 64 << 10
# One message can carry this many, less the locks of a name and a key.
_PASS_FDS_MAX = sockets.MAX_FDS - 2


class StartRequest:
    """A checked start: what goes to the runner, and which claims it makes."""

    def __init__(
        self, spec: dict[str, Any], env: dict[str, str], input: bytes | None, replace: bool, fds: list[int]
    ) -> None:
        self.spec = spec
        self.env = env
        self.input = input
        self.replace = replace
        # Our descriptors, in the order of the numbers that the spec names.
        self.fds = fds


def build(
    command: Command, options: StartOptions, *, config: Config, author: str, environ: Mapping[str, str]
) -> StartRequest:
    """`None` for an option is the same as leaving it out."""
    unknown = sorted(set(options) - START_OPTIONS)
    if unknown:
        raise BadArgument(unknown[0], "no such option", f"one of {', '.join(sorted(START_OPTIONS))}")
    options = {name: value for name, value in options.items() if value is not None}  # type: ignore[assignment]
    place = kinds.check(options.get("place"), config)
    away = place != kinds.LOCAL
    if away:
        _fits_away(options)
        environ = {}  # the place has its own
    tty = check_tty(options.get("tty"))
    if tty is None and options.get("size") is not None:
        raise BadArgument("size", "is the size of a terminal, and this start has none", "give tty=True too")
    set_names, env = _environment(options, environ)
    if tty is not None:
        env = environment(env, set_names, tty)
        tty |= {"term": env["TERM"], **watched(config)}
    given = _input(options)
    passed, report = _pass_fds(options.get("pass_fds", ()))
    usual = "monitor" if options.get("monitor") else "local_bash" if tty is None else "terminal"
    kind = OPTIONS["kind"].check(options.get("kind", usual))
    spec = {
        "v": 1,
        "id": new_id(kind),
        "kind": kind,
        "command": _command(command),
        "cwd": _directory_away(options.get("cwd")) if away else _directory(options.get("cwd")),
        "env_names": sorted(env),
        "env_set": set_names,
        "tty": tty,
        "size": None if tty is None else check_size(options.get("size", (config.terminal_rows, config.terminal_cols))),
        "stdin": _stdin(options, given, tty, config),
        "input_bytes": None if given is None else len(given),
        "pass_fds": list(passed),
        **({} if report is None else {"report_fd": report}),
        "place": place,
        "author": author,
        "restarted_from": None,
        "created_at": clock.now_text(),
        **_as_given(options, config),
        **_lifetime(options),
        "segment_bytes": config.log_segment,
        "free_floor": config.log_free_floor,
        "signals": {"file_bytes": config.signals_file_bytes, "answer_grace": config.signals_answer_grace},
        "people": people_spec(config),
    }
    if any(options.get(option.name) not in (None, False) for option in OPTIONS.values() if option.feature):
        from .feature_options import feature_options

        spec["notes"] = []
        spec.update(feature_options(options, config, spec["notes"]))
    replace = "replace" in options and OPTIONS["replace"].check(options["replace"])
    if replace and spec["key"] is None and spec["name"] is None:
        why = "replaces the holder of a key or name, and neither is given"
        raise BadArgument("replace", why, "give key= or name= too")
    return StartRequest(spec, env, given, replace, list(passed.values()))


def _as_given(options: StartOptions, config: Config) -> dict[str, Any]:
    """The options that the spec has under their own name. Those that are given are checked; defaults are right, and
    settings were checked where they were read."""
    found: dict[str, Any] = {}
    for name, option in OPTIONS.items():
        if name in _COMBINED or option.feature:
            continue
        value: Any = options.get(name)
        if value is not None:
            found[name] = _RULES[name](value) if name in _RULES else option.check(value)
            continue
        usual = option.default if option.setting is None else getattr(config, option.setting)
        found[name] = dict(usual) if isinstance(usual, dict) else usual
    if found["umask"] is None:
        found["umask"] = current_umask()
    return found


def _stdin(options: StartOptions, given: bytes | None, tty: dict[str, Any] | None, config: Config) -> str:
    usual = "open" if given is not None or tty else config.start_stdin
    stdin: str = OPTIONS["stdin"].check(options.get("stdin", usual))
    if stdin == "closed" and given is not None:
        raise BadArgument("input", "cannot be written to a closed stdin", "leave stdin out, or give stdin='open'")
    if stdin == "closed" and tty is not None:
        raise BadArgument("stdin", "a terminal is both input and output", "leave stdin out")
    return stdin


def _fits_away(options: StartOptions) -> None:
    """Some options make sense on this machine only."""
    if _pass_fds(options.get("pass_fds", ()))[0]:
        raise Unsupported("pass_fds in another place")
    if options.get("lifetime") == "owner":
        raise Unsupported("lifetime='owner' in another place")


def current_umask() -> int:
    """Read from /proc: `os.umask` would change it for a moment, for all threads."""
    with open("/proc/self/status") as file:
        for line in file:
            if line.startswith("Umask:"):
                return int(line.split()[1], 8)
    before = os.umask(0o22)
    os.umask(before)
    return before


def _command(command: object) -> str | list[str]:
    if isinstance(command, str):
        if not command.strip():
            raise EmptyCommand
        return _for_the_system("command", command)
    if isinstance(command, (bytes, bytearray)) or not hasattr(command, "__iter__"):
        raise BadArgument("command", f"{shown(command)} is neither text nor a list of words")
    words = [_for_the_system("command", word) for word in command]
    if not words or not words[0]:
        raise EmptyCommand
    return words


def _shell(shell: object) -> str | list[str]:
    """The program, or all words before the command."""
    if not isinstance(shell, (list, tuple)):
        return _for_the_system("shell", shell)
    words = [_for_the_system("shell", word) for word in shell]
    if not words or not words[0]:
        raise BadArgument("shell", "has no program", "give its path, or the words before the command")
    return words


def _for_the_system(argument: str, value: object) -> str:
    """Text that can be an argument of a program; a path object counts as its text."""
    try:
        text = os.fspath(value)  # type: ignore[call-overload]
    except TypeError:
        text = None
    if not isinstance(text, str):
        raise BadArgument(argument, f"{shown(value)} is not text")
    if "\0" in text:
        raise BadArgument(argument, "contains a NUL character")
    try:
        os.fsencode(text)
    except UnicodeEncodeError:
        raise BadArgument(argument, f"{shown(text)} contains characters that cannot be encoded") from None
    return text


def _plain(given: object) -> object:
    """Any mapping as a dict, anything else as it is."""
    return dict(given.items()) if hasattr(given, "items") and hasattr(given, "keys") else given


def _directory(cwd: object) -> str:
    return os.getcwd() if cwd is None else os.path.abspath(_for_the_system("cwd", cwd))


def _directory_away(cwd: object) -> str | None:
    """As it was given: the place resolves it."""
    return None if cwd is None else _for_the_system("cwd", cwd)


def _environment(options: StartOptions, environ: Mapping[str, str]) -> tuple[list[str], dict[str, str]]:
    env = {} if OPTIONS["clean_env"].check(options.get("clean_env", False)) else dict(environ)
    # The new session is not the one that we may run in, nor a probe or a notice to people that we may be.
    env.pop(processes.SESSION_VARIABLE, None)
    env.pop(processes.ROLE_VARIABLE, None)
    given = _plain(options.get("env", {}))
    if not isinstance(given, dict):
        raise BadArgument("env", "is not a mapping", 'give {"NAME": "value"}, None to leave one out')
    for name, value in given.items():
        if not _for_the_system("env", name) or "=" in name:
            raise BadArgument("env", f"{shown(name)} is not the name of a variable", "give one such as PATH")
        if value is None:
            env.pop(name, None)
            continue
        try:
            env[name] = _for_the_system("env", value)
        except BadArgument:
            # The value may be a secret.
            raise BadArgument("env", f"the value of {name} is not text that a program can be given") from None
    return sorted(given), env


def _input(options: StartOptions) -> bytes | None:
    given = options.get("input")
    if given is None:
        return None
    try:
        raw = given.encode() if isinstance(given, str) else given
    except UnicodeEncodeError:
        raw = None
    if not isinstance(raw, (bytes, bytearray, memoryview)):
        raise BadArgument("input", f"a {type(given).__name__} that cannot be made bytes", "give bytes or text")
    if len(raw) > INPUT_MAX_BYTES:
        raise TooLarge("input", INPUT_MAX_BYTES)
    return bytes(raw)


def _limits(asked: object) -> dict[str, list[int]]:
    given = _plain(asked)
    if not isinstance(given, dict):
        raise BadArgument("limits", "is not a mapping", 'give {"nofile": 1024}, or {"nofile": (1024, 4096)}')
    if not given:
        return {}
    from ..runner.spawn import LIMITS

    checked = {}
    for name, value in given.items():
        if name not in LIMITS:
            raise BadArgument("limits", f"no limit {shown(name)}", f"one of {', '.join(sorted(LIMITS))}")
        pair = list(value) if isinstance(value, (list, tuple)) else [value, value]
        if len(pair) != 2:
            raise BadArgument("limits", f"{name} has {len(pair)} values", "give one number, or soft and hard")
        # -1 is how the system spells no limit.
        soft, hard = (whole(f"limit {name}", each, -1, (1 << 63) - 1) for each in pair)
        if hard != -1 and (soft > hard or soft == -1):
            raise BadArgument("limits", f"{name}: the soft limit {soft} is above the hard one, {hard}")
        checked[name] = [soft, hard]
    return checked


def check_ladder(steps: object) -> list[dict[str, Any]]:
    if not isinstance(steps, (list, tuple)) or not all(hasattr(rung, "get") for rung in steps):
        raise BadArgument("stop_ladder", "is not a list of steps", "give {signal, target, wait_s} each")
    import signal

    checked = []
    for rung in steps:
        name = str(rung.get("signal", "")).upper().removeprefix("SIG")
        target = rung.get("target", "command")
        if not isinstance(getattr(signal, "SIG" + name, None), signal.Signals) or target not in _TARGETS:
            raise BadArgument("stop_ladder", f"{shown(str(rung))} is not a step", "give {signal, target, wait_s} each")
        wait_s = seconds(rung.get("wait_s", 0), "stop_ladder")
        last = {"last": True} if rung.get("last") is True else {}
        checked.append({"signal": name, "target": target, "wait_s": wait_s, **last})
    return checked


def _pass_fds(fds: object) -> tuple[dict[int, int], int | None]:
    """Our descriptors by their number in the command: the same one, unless a mapping gives another. And the number that
    a mapping gives for None: there the command gets a file of its runner's, which keeps the content."""
    given = _plain(fds)
    if not isinstance(given, (dict, list, tuple, set, frozenset, range)):
        raise BadArgument("pass_fds", f"{shown(fds)} is not a list of descriptors")
    if len(given) > _PASS_FDS_MAX:
        raise BadArgument("pass_fds", f"{len(given)} descriptors", f"one start can take {_PASS_FDS_MAX}")
    passed, report = {}, None
    for number, fd in given.items() if isinstance(given, dict) else zip(given, given, strict=True):
        if whole("pass_fds", number, 0, (1 << 31) - 1) < 3:
            raise BadArgument("pass_fds", f"{number} is one of the standard streams")
        if fd is None:
            if report is not None:
                raise BadArgument("pass_fds", f"None is given for {report} and for {number}", "give it once")
            report = number
            continue
        try:
            os.fstat(whole("pass_fds", fd, 0, (1 << 31) - 1))
        except OSError:
            raise BadArgument("pass_fds", f"{fd} is not open", f"open it first, in a shell with `{fd}<FILE`") from None
        passed[number] = fd
    return passed, report


def _metadata(asked: object) -> dict[str, Any]:
    """A JSON object, and a small one: it is part of every snapshot."""
    given = _plain(asked)
    if given == {}:
        return {}
    import json

    if not isinstance(given, dict):
        raise BadArgument("metadata", "is not a mapping")
    try:
        text = json.dumps(given, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as problem:
        raise BadArgument("metadata", f"is not JSON: {problem}") from None
    if len(text) > _METADATA_CHARACTERS:
        raise TooLarge("metadata", _METADATA_CHARACTERS, "store less in it, or the path of a file")
    return dict(json.loads(text))


def _lifetime(options: StartOptions) -> dict[str, Any]:
    lifetime = OPTIONS["lifetime"].check(options.get("lifetime", "detached"))
    owner = None
    if lifetime == "owner":
        pid = OPTIONS["owner_pid"].check(options.get("owner_pid", os.getpid()))
        process = processes.look(pid)
        if process is None:
            raise BadArgument("owner_pid", f"no process {pid}", "give the pid of a process that runs")
        owner = {"pid": pid, "start": process.start}
    elif options.get("owner_pid") is not None:
        raise BadArgument("owner_pid", "only a session with lifetime='owner' has one", "give lifetime='owner' too")
    return {"lifetime": lifetime, "owner_process": owner}


# Options that the spec has in another form, or that depend on each other: `build` checks them.
_COMBINED = (
    *("kind", "replace", "place", "cwd", "env", "tty", "size", "stdin", "input", "pass_fds", "lifetime", "owner_pid"),
)
# Rules of one option that are more than its kind of value.
_RULES: dict[str, Callable[[Any], Any]] = {
    "name": check_name,
    "owner": check_owner,
    "labels": lambda value: check_labels(_plain(value)),
    "shell": _shell,
    "argv0": lambda value: _for_the_system("argv0", value),
    "limits": _limits,
    "metadata": _metadata,
    "stop_ladder": check_ladder,
}


# The terminal options of a start, checked, and the environment of a program on a terminal of its own.


DEFAULT_TERM = "xterm-256color"
_OPTIONS = ("term", "size_policy", "echo", "clipboard", "colors")
# Variables that describe the caller's terminal, not this one.
_REMOVED = frozenset(["LINES", "COLUMNS", "WINDOWID", "TMUX", "TMUX_PANE", "STY", "TERM_SESSION_ID", "WT_SESSION"])
_REMOVED_FAMILIES = ("KITTY_", "ITERM_", "WEZTERM_", "ALACRITTY_", "GHOSTTY_", "VTE_", "KONSOLE_")


def check_tty(asked: object) -> dict[str, Any] | None:
    """`tty` of a start: None for pipes, else every option with its value."""
    if asked is None or asked is False:
        return None
    from ..runner.terminal.pty import POLICIES

    given = {} if asked is True else dict(asked) if hasattr(asked, "keys") else None  # type: ignore[call-overload]
    if given is None:
        raise BadArgument("tty", f"{shown(asked)} is neither True nor a mapping of options")
    unknown = sorted(set(map(str, given)) - set(_OPTIONS))
    if unknown:
        raise BadArgument("tty", f"no option {shown(unknown[0])}", f"one of {', '.join(_OPTIONS)}")
    policy = given.get("size_policy", "latest")
    if policy not in POLICIES:
        raise BadArgument("tty", f"size_policy {shown(policy)} is not one of {', '.join(POLICIES)}")
    term = given.get("term")
    if term is not None and (not isinstance(term, str) or not term.strip() or "\0" in term or "/" in term):
        raise BadArgument("term", f"{shown(term)} is not the name of a terminal", f"such as {DEFAULT_TERM}")
    for switch in ("echo", "clipboard"):
        if not isinstance(given.get(switch, True), bool):
            raise BadArgument("tty", f"{switch} is neither True nor False")
    return {
        "term": term,
        "size_policy": policy,
        "echo": given.get("echo", True),
        "clipboard": given.get("clipboard", False),
        "colors": _colors(given.get("colors")),
    }


def tty_again(recorded: dict[str, Any], env: Collection[str]) -> dict[str, Any]:
    """`tty` of a start as it was asked for, from the spec. What came from the configuration is read from it again, and
    a new TERM wins over the recorded one."""
    return {name: recorded[name] for name in _OPTIONS if name in recorded and (name != "term" or "TERM" not in env)}


def watched(config: Config) -> dict[str, Any]:
    """The configured patterns of questions."""
    added = prompt_patterns(config.terminal_prompts, "terminal.prompts")
    prompts = {"added": added, "replace": config.terminal_prompts_replace} if added else None
    return {"prompts": prompts}


def check_size(size: object) -> list[int]:
    """Rows and columns. As text, columns come first, as everywhere else: `80x24`."""
    from ..core.vt.cursor import COLS_MAX, ROWS_MAX

    pair = reversed(size.lower().split("x")) if isinstance(size, str) else size
    try:
        rows, cols = (int(each) for each in pair)  # type: ignore[attr-defined]
    except (TypeError, ValueError):
        raise BadSize(shown(size)) from None
    if not (1 <= rows <= ROWS_MAX and 1 <= cols <= COLS_MAX):
        raise BadSize(f"{cols}x{rows}")
    return [rows, cols]


def environment(env: dict[str, str], given: Collection[str], tty: dict[str, Any]) -> dict[str, str]:
    """Variables that were given win; those that describe the caller's terminal are removed."""
    mended = {
        name: value
        for name, value in env.items()
        if name in given or not (name in _REMOVED or name.startswith(_REMOVED_FAMILIES))
    }
    wanted = env.get("TERM", "") if "TERM" in given else ""
    mended["TERM"] = tty["term"] or (wanted if wanted.strip() not in ("", "dumb") else DEFAULT_TERM)
    ours = {"COLORTERM": "truecolor", "TERM_PROGRAM": "holdfast", "TERM_PROGRAM_VERSION": __version__}
    return {**mended, **{name: value for name, value in ours.items() if name not in given}}


def _colors(asked: object) -> dict[str, list[int]] | None:
    if asked is None:
        return None
    if not hasattr(asked, "keys"):
        raise BadArgument("tty", "colors is not a mapping", 'give {"foreground": "#c0c0c0", "background": "#000000"}')
    given = dict(asked)  # type: ignore[call-overload]
    for name in given:
        if name not in ("foreground", "background", "cursor"):
            raise BadArgument("tty", f"no colour {shown(name)}", "one of foreground, background, cursor")
    return {name: _color(name, value) for name, value in given.items()}


def _color(name: str, value: object) -> list[int]:
    if isinstance(value, str) and len(value) == 7 and value[0] == "#":
        try:
            return list(bytes.fromhex(value[1:]))
        except ValueError:
            pass
    parts = list(value) if isinstance(value, (list, tuple)) else []
    if len(parts) == 3 and all(isinstance(part, int) and 0 <= part <= 255 for part in parts):
        return parts
    raise BadArgument(name, f"{shown(value)} is not a colour", "such as #1e1e2e")


if TYPE_CHECKING:
    Command = str | Sequence[str]
