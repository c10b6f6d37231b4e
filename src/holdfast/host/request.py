"""From a command and its options to a start request. Everything is checked here, before anything exists."""

from __future__ import annotations

import os
import sys

from .. import places
from ..config import config_path
from ..errors import BadArgument, EmptyCommand, TooLarge, Unsupported
from ..home import check_labels, check_name, check_owner, new_id
from ..model import START_OPTIONS, seconds, size_bytes
from ..model.units import shown
from ..runner import clock, sockets, tree
from .tty import check_size, check_tty, watched
from .tty import environment as terminal_environment

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any, Literal

    from ..config import Config
    from ..model import StartOptions

    Command = str | Sequence[str]

# What the module `attention` checks; a start that asks for none of it need not load it.
_ATTENTION = ("watch", "monitor", "heartbeat", "soft", "ready", "health", "restart")
INPUT_MAX_BYTES = 8 << 20
# A cap must hold a few reads, or dropping would take what was just written.
LOG_CAP_MIN_BYTES = 1 << 20
_TARGETS = ("command", "group", "session", "tree")
_KIND_CHARACTERS = 64
_KEY_CHARACTERS = 1024
_DESCRIPTION_CHARACTERS = 1024
_METADATA_CHARACTERS = 64 << 10
# What one message can carry, less the locks of a name and a key.
_PASS_FDS_MAX = sockets.MAX_FDS - 2
_STDIN = ("closed", "open")


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
    place = places.check(options.get("place"))
    away = place != places.LOCAL
    if away:
        _fits_away(options)
        environ = {}  # the place has its own
    tty = check_tty(options.get("tty"))
    if tty is None and options.get("size") is not None:
        raise BadArgument("size", "is the size of a terminal, and none is asked for", "give tty=True too")
    set_names, env = _environment(options, environ)
    if tty is not None:
        env = terminal_environment(env, set_names, tty)
        tty |= {"term": env["TERM"], **watched(config)}
    given = _input(options)
    stdin: str = options.get("stdin") or ("open" if given is not None or tty else config.start_stdin)
    _one_of("stdin", stdin, _STDIN)
    if given is not None and stdin == "closed":
        raise BadArgument("input", "cannot be written to a closed stdin", "leave stdin out, or give stdin='open'")
    if tty is not None and stdin == "closed":
        raise BadArgument("stdin", "a terminal is both input and output", "leave stdin out")
    cap = _log_cap(options.get("log_cap", config.log_session_cap))
    usual = "monitor" if options.get("monitor") else "local_bash" if tty is None else "terminal"
    kind = _text("kind", options.get("kind", usual), _KIND_CHARACTERS)
    name, owner = options.get("name"), options.get("owner")
    passed, report = _pass_fds(options.get("pass_fds", ()))
    spec = {
        "v": 1,
        "id": new_id(kind),
        "kind": kind,
        "name": None if name is None else check_name(name),
        "description": _optional_text(options, "description", _DESCRIPTION_CHARACTERS),
        "owner": None if owner is None else check_owner(owner),
        "labels": check_labels(_plain(options.get("labels", {}))),
        "command": _command(command),
        "shell": _shell(options.get("shell", config.start_shell)),
        "argv0": None if "argv0" not in options else _for_the_system("argv0", options["argv0"]),
        "cwd": _directory_away(options.get("cwd")) if away else _directory(options.get("cwd")),
        "env_names": sorted(env),
        "env_set": set_names,
        "clean_env": _switch(options, "clean_env"),
        "umask": _whole("umask", options["umask"], 0, 0o777) if "umask" in options else current_umask(),
        "limits": _limits(options.get("limits", {})),
        "oom_score_adj": _whole("oom_score_adj", options.get("oom_score_adj", config.start_oom_score_adj), -1000, 1000),
        "memory": _memory(options.get("memory")),
        "tty": tty,
        "size": None if tty is None else check_size(options.get("size", (config.terminal_rows, config.terminal_cols))),
        "stdin": stdin,
        "input_bytes": None if given is None else len(given),
        "merge_stderr": _switch(options, "merge_stderr"),
        "pass_fds": list(passed),
        **({} if report is None else {"report_fd": report}),
        "timeout": _limit("timeout", options.get("timeout")),
        "idle_timeout": _limit("idle_timeout", options.get("idle_timeout")),
        "ttl": _limit("ttl", options.get("ttl")),
        "grace": seconds(options.get("grace", config.start_grace), "grace"),
        "stop_ladder": None if "stop_ladder" not in options else check_ladder(options["stop_ladder"]),
        "notify": _one_of("notify", options.get("notify", "exit"), ("never", "exit", "failure", "auto")),
        "key": _optional_text(options, "key", _KEY_CHARACTERS),
        "log_cap": cap,
        "segment_bytes": config.log_segment,
        "free_floor": config.log_free_floor,
        "place": place,
        "author": author,
        "metadata": _metadata(options.get("metadata", {})),
        "restarted_from": None,
        "created_at": clock.now_text(),
        **_lifetime(options),
        **_told(options, config),
    }
    if any(options.get(option) not in (None, False) for option in _ATTENTION):
        from .attention import attention

        spec["notes"] = []
        spec.update(attention(options, config, spec["notes"]))
    replace = _switch(options, "replace")
    if replace and spec["key"] is None and spec["name"] is None:
        raise BadArgument(
            "replace", "replaces the holder of a key or name, and none is given", "give key= or name= too"
        )
    return StartRequest(spec, env, given, replace, list(passed.values()))


def _fits_away(options: StartOptions) -> None:
    """What is of this machine cannot be handed to another."""
    if _pass_fds(options.get("pass_fds", ()))[0]:
        raise Unsupported("pass_fds in another place")
    if options.get("lifetime") == "owner":
        raise Unsupported("lifetime='owner' in another place")


def _told(options: StartOptions, config: Config) -> dict[str, Any]:
    """How the signals of this session are kept, and who tells people of them."""
    people = options.get("notify_people")
    if people is not None and not isinstance(people, bool):
        raise BadArgument("notify_people", f"{shown(people)} is neither true nor false", "give True or False")
    return {
        "notify_people": people,
        "signals": {"file_bytes": config.signals_file_bytes, "answer_grace": config.signals_answer_grace},
        "people": people_spec(config),
    }


def people_spec(config: Config) -> dict[str, Any]:
    """Which events people are notified of, none without a channel; the program that delivers when no host is there, to
    which the runner adds the home; and the configuration file, for a channel that is added while the session runs."""
    told = [config.people_events if each.events is None else each.events for each in config.channels().values()]
    told += [config.people_events] if config.people_bell else []
    # Not from a directory that happens to be ours: whoever may write there must not become the deliverer.
    argv = [sys.executable, "-P", "-m", "holdfast.signals.deliver"]
    file = config.file or config_path(os.environ)
    argv += ["--config", file]
    events = sorted({event for events in told for event in events})
    return {"events": events, "argv": argv, "config": [file, config.changed_ns() or 0]}


def current_umask() -> int:
    """Asking the kernel directly would mean to change it for a moment, for all our threads."""
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
    """The program, or all words that stand before the command."""
    if not isinstance(shell, (list, tuple)):
        return _for_the_system("shell", shell)
    words = [_for_the_system("shell", word) for word in shell]
    if not words or not words[0]:
        raise BadArgument("shell", "has no program", "give its path, or the words that stand before the command")
    return words


def _for_the_system(argument: str, value: object) -> str:
    """Text that the kernel can be given, in the bytes that stand for it; a path object is its text."""
    try:
        text = os.fspath(value)  # type: ignore[call-overload]
    except TypeError:
        text = None
    if not isinstance(text, str):
        raise BadArgument(argument, f"{shown(value)} is not text")
    if "\0" in text:
        raise BadArgument(argument, "holds a NUL character, which no program can be given")
    try:
        os.fsencode(text)
    except UnicodeEncodeError:
        raise BadArgument(argument, f"{shown(text)} holds characters that stand for no bytes") from None
    return text


def _text(argument: str, value: object, limit: int) -> str:
    if not isinstance(value, str):
        raise BadArgument(argument, f"{shown(value)} is not text")
    if not value or len(value) > limit:
        raise BadArgument(argument, f"has {len(value)} characters", f"give 1 to {limit}")
    return value


def _optional_text(options: StartOptions, name: Literal["description", "key"], limit: int) -> str | None:
    value = options.get(name)
    return None if value is None else _text(name, value, limit)


def _switch(options: StartOptions, name: Literal["merge_stderr", "replace", "clean_env"]) -> bool:
    value = options.get(name, False)
    if not isinstance(value, bool):
        raise BadArgument(name, f"{shown(value)} is neither True nor False")
    return value


def _plain(given: object) -> object:
    """A mapping of any make as a dict, anything else as it is."""
    return dict(given.items()) if hasattr(given, "items") and hasattr(given, "keys") else given


def _whole(argument: str, value: object, low: int, high: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise BadArgument(argument, f"{shown(value)} is no whole number from {low} to {high}")
    return value


def _directory(cwd: object) -> str:
    return os.getcwd() if cwd is None else os.path.abspath(_for_the_system("cwd", cwd))


def _directory_away(cwd: object) -> str | None:
    """As it was given: what it means is known there."""
    return None if cwd is None else _for_the_system("cwd", cwd)


def _environment(options: StartOptions, environ: Mapping[str, str]) -> tuple[list[str], dict[str, str]]:
    env = {} if _switch(options, "clean_env") else dict(environ)
    # The mark of the session we may be in ourselves is not the new one's; nor are we part of its machinery, where a
    # probe or a notice to people has started us.
    env.pop(tree.SESSION_VARIABLE, None)
    env.pop(tree.ROLE_VARIABLE, None)
    given = _plain(options.get("env", {}))
    if not isinstance(given, dict):
        raise BadArgument("env", "is no mapping", 'give {"NAME": "value"}, None to leave one out')
    for name, value in given.items():
        if not _for_the_system("env", name) or "=" in name:
            raise BadArgument("env", f"{shown(name)} is not the name of a variable", "give one such as PATH")
        if value is None:
            env.pop(name, None)
            continue
        try:
            env[name] = _for_the_system("env", value)
        except BadArgument:
            # What it is may be a secret.
            raise BadArgument("env", f"the value of {name} is no text that a program can be given") from None
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


def _limit(name: str, value: object) -> float | None:
    if value is None:
        return None
    limit = seconds(value, name)
    if limit <= 0:
        raise BadArgument(name, "must be above 0", "leave it out for no limit")
    return limit


def _memory(value: object) -> int | None:
    if value is None:
        return None
    limit = size_bytes(value, "memory")
    if not limit:
        raise BadArgument("memory", "must be above 0", "leave it out for no limit")
    return limit


def _limits(asked: object) -> dict[str, list[int]]:
    given = _plain(asked)
    if not isinstance(given, dict):
        raise BadArgument("limits", "is no mapping", 'give {"nofile": 1024}, or {"nofile": (1024, 4096)}')
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
        soft, hard = (_whole(f"limit {name}", each, -1, (1 << 63) - 1) for each in pair)
        if hard != -1 and (soft > hard or soft == -1):
            raise BadArgument("limits", f"{name}: the soft limit {soft} is above the hard one, {hard}")
        checked[name] = [soft, hard]
    return checked


def check_ladder(climb: object) -> list[dict[str, Any]]:
    if not isinstance(climb, (list, tuple)) or not all(hasattr(rung, "get") for rung in climb):
        raise BadArgument("stop_ladder", "is no list of rungs", "give {signal, target, wait_s} each")
    import signal

    checked = []
    for rung in climb:
        name = str(rung.get("signal", "")).upper().removeprefix("SIG")
        target = rung.get("target", "command")
        if not isinstance(getattr(signal, "SIG" + name, None), signal.Signals) or target not in _TARGETS:
            raise BadArgument("stop_ladder", f"{shown(str(rung))} is no rung", "give {signal, target, wait_s} each")
        wait_s = seconds(rung.get("wait_s", 0), "stop_ladder")
        last = {"last": True} if rung.get("last") is True else {}
        checked.append({"signal": name, "target": target, "wait_s": wait_s, **last})
    return checked


def _pass_fds(fds: object) -> tuple[dict[int, int], int | None]:
    """Ours, by the number that each has in the command: the same one, unless a mapping says another. And the number
    that stands for None, if any: under that one a command has a file of its runner's, who keeps what is in it."""
    given = _plain(fds)
    if not isinstance(given, (dict, list, tuple, set, frozenset, range)):
        raise BadArgument("pass_fds", f"{shown(fds)} is no list of descriptors")
    if len(given) > _PASS_FDS_MAX:
        raise BadArgument("pass_fds", f"{len(given)} descriptors", f"one start can take {_PASS_FDS_MAX}")
    passed, report = {}, None
    for number, fd in given.items() if isinstance(given, dict) else zip(given, given, strict=True):
        if _whole("pass_fds", number, 0, (1 << 31) - 1) < 3:
            raise BadArgument("pass_fds", f"{number} is one of the standard streams")
        if fd is None:
            if report is not None:
                raise BadArgument("pass_fds", f"None stands for {report} and for {number}", "give it once")
            report = number
            continue
        try:
            os.fstat(_whole("pass_fds", fd, 0, (1 << 31) - 1))
        except OSError:
            raise BadArgument("pass_fds", f"{fd} is not open", f"open it first, in a shell with `{fd}<FILE`") from None
        passed[number] = fd
    return passed, report


def _metadata(asked: object) -> dict[str, Any]:
    """Anything JSON can tell, and little of it: every look at the session carries it."""
    given = _plain(asked)
    if given == {}:
        return {}
    import json

    if not isinstance(given, dict):
        raise BadArgument("metadata", "is no dict")
    try:
        text = json.dumps(given, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as problem:
        raise BadArgument("metadata", f"is not JSON: {problem}") from None
    if len(text) > _METADATA_CHARACTERS:
        raise TooLarge("metadata", _METADATA_CHARACTERS, "store less in it, or the path of a file")
    return dict(json.loads(text))


def _log_cap(value: object) -> int:
    cap = size_bytes(value, "log_cap")
    if cap < LOG_CAP_MIN_BYTES:
        raise BadArgument("log_cap", f"{cap} bytes are too few", f"give at least {LOG_CAP_MIN_BYTES}")
    return cap


def _lifetime(options: StartOptions) -> dict[str, Any]:
    lifetime = _one_of("lifetime", options.get("lifetime", "detached"), ("detached", "owner", "call"))
    owner = None
    if lifetime == "owner":
        pid = _whole("owner_pid", options.get("owner_pid", os.getpid()), 1, (1 << 31) - 1)
        process = tree.look(pid)
        if process is None:
            raise BadArgument("owner_pid", f"no process {pid}", "give the pid of a process that runs")
        owner = {"pid": pid, "start": process.start}
    elif options.get("owner_pid") is not None:
        raise BadArgument("owner_pid", "only a session with lifetime='owner' has one", "give lifetime='owner' too")
    return {"lifetime": lifetime, "owner_process": owner}


def _one_of(name: str, value: object, allowed: tuple[str, ...]) -> str:
    if value not in allowed:
        raise BadArgument(name, f"{shown(value)} is not one of {', '.join(allowed)}")
    return str(value)
