"""From a command and its options to a start request. Everything is checked here, before anything exists."""

from __future__ import annotations

import os
import signal

from ..errors import BadArgument, EmptyCommand, TooLarge, Unsupported
from ..home import check_labels, check_name, check_owner, new_id
from ..model import START_OPTIONS, seconds, size_bytes
from ..runner import clock, tree

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

    from ..config import Config
    from ..model import StartOptions

    Command = str | Sequence[str]

# Options of the surface that later parts carry out. Asking for one is refused, never ignored.
_NOT_YET = ("tty", "size", "watch", "soft", "heartbeat", "ready", "health", "monitor", "restart")
_INPUT_MAX_BYTES = 8 << 20
# A cap must hold a few reads, or dropping would take what was just written.
LOG_CAP_MIN_BYTES = 1 << 20
_TARGETS = ("command", "group", "tree")
_STDIN = ("closed", "open")


class StartRequest:
    """A checked start: what goes to the runner, and which claims it makes."""

    def __init__(self, spec: dict[str, Any], env: dict[str, str], input: bytes | None, replace: bool) -> None:
        self.spec = spec
        self.env = env
        self.input = input
        self.replace = replace


def build(
    command: Command, options: StartOptions, *, config: Config, author: str, environ: Mapping[str, str]
) -> StartRequest:
    unknown = sorted(set(options) - START_OPTIONS)
    if unknown:
        raise BadArgument(unknown[0], "no such option", f"one of {', '.join(sorted(START_OPTIONS))}")
    for name in _NOT_YET:
        if options.get(name):
            raise Unsupported(name)
    if options.get("place", "local") != "local":
        raise Unsupported(f"place {options['place']}")
    set_names, env = _environment(options, environ)
    given = _input(options)
    stdin: str = options.get("stdin") or ("open" if given is not None else config.start_stdin)
    _one_of("stdin", stdin, _STDIN)
    if given is not None and stdin == "closed":
        raise BadArgument("input", "cannot be written to a closed stdin", "leave stdin out, or give stdin='open'")
    kind = options.get("kind", "local_bash")
    name, owner = options.get("name"), options.get("owner")
    spec = {
        "v": 1,
        "id": new_id(kind),
        "kind": kind,
        "name": None if name is None else check_name(name),
        "description": options.get("description"),
        "owner": None if owner is None else check_owner(owner),
        "labels": check_labels(dict(options.get("labels") or {})),
        "command": _command(command),
        "shell": options.get("shell") or config.start_shell,
        "argv0": options.get("argv0"),
        "cwd": _directory(options.get("cwd")),
        "env_names": sorted(env),
        "env_set": set_names,
        "umask": options["umask"] if "umask" in options else current_umask(),
        "limits": _limits(options.get("limits") or {}),
        "oom_score_adj": options.get("oom_score_adj", config.start_oom_score_adj),
        "memory": None if options.get("memory") is None else size_bytes(options["memory"]),
        "stdin": stdin,
        "merge_stderr": bool(options.get("merge_stderr", False)),
        "pass_fds": _pass_fds(options.get("pass_fds") or ()),
        "timeout": _limit("timeout", options.get("timeout")),
        "idle_timeout": _limit("idle_timeout", options.get("idle_timeout")),
        "ttl": _limit("ttl", options.get("ttl")),
        "grace": seconds(options.get("grace", config.start_grace)),
        "stop_ladder": _ladder(options.get("stop_ladder")),
        "notify": _one_of("notify", options.get("notify", "exit"), ("never", "exit", "failure", "auto")),
        "key": options.get("key"),
        "log_cap": _log_cap(options.get("log_cap", config.log_session_cap)),
        "segment_bytes": config.log_segment,
        "free_floor": config.log_free_floor,
        "place": "local",
        "author": author,
        "metadata": dict(options.get("metadata") or {}),
        "restarted_from": None,
        "created_at": clock.now_text(),
        **_lifetime(options),
    }
    if options.get("replace") and spec["key"] is None and spec["name"] is None:
        raise BadArgument("replace", "replaces the holder of a key or name, and none is given", "give key= too")
    return StartRequest(spec, env, given, bool(options.get("replace", False)))


def current_umask() -> int:
    """Asking the kernel directly would mean to change it for a moment, for all our threads."""
    with open("/proc/self/status") as file:
        for line in file:
            if line.startswith("Umask:"):
                return int(line.split()[1], 8)
    before = os.umask(0o22)
    os.umask(before)
    return before


def _command(command: Command) -> str | list[str]:
    if isinstance(command, str):
        if not command.strip():
            raise EmptyCommand
        words = [command]
    else:
        words = [os.fspath(word) for word in command]
        if not words or not words[0]:
            raise EmptyCommand
    for word in words:
        if not isinstance(word, str):
            raise BadArgument("command", f"{word!r} is not text")
        if "\0" in word:
            raise BadArgument("command", "holds a NUL character, which no program can be given")
    return command if isinstance(command, str) else words


def _directory(cwd: object) -> str:
    path = os.path.abspath(os.fspath(cwd)) if cwd is not None else os.getcwd()  # type: ignore[call-overload]
    return str(path)


def _environment(options: StartOptions, environ: Mapping[str, str]) -> tuple[list[str], dict[str, str]]:
    env = {} if options.get("clean_env") else dict(environ)
    # The mark of the session we may be in ourselves is not the new one's.
    env.pop(tree.SESSION_VARIABLE, None)
    given = options.get("env") or {}
    for name, value in given.items():
        if not name or "=" in name or "\0" in name or "\0" in (value or ""):
            raise BadArgument("env", f"{name!r} is not the name of a variable, or its value holds a NUL")
        if value is None:
            env.pop(name, None)
        else:
            env[name] = str(value)
    return sorted(given), env


def _input(options: StartOptions) -> bytes | None:
    given = options.get("input")
    if given is None:
        return None
    raw = given.encode() if isinstance(given, str) else bytes(given)
    if len(raw) > _INPUT_MAX_BYTES:
        raise TooLarge("input", _INPUT_MAX_BYTES)
    return raw


def _limit(name: str, value: object) -> float | None:
    if value is None:
        return None
    limit = seconds(value)
    if limit <= 0:
        raise BadArgument(name, "must be above 0", "leave it out for no limit")
    return limit


def _limits(given: Mapping[str, Any]) -> dict[str, list[int]]:
    from ..runner.spawn import LIMITS

    checked = {}
    for name, value in given.items():
        if name not in LIMITS:
            raise BadArgument("limits", f"no limit {name!r}", f"one of {', '.join(sorted(LIMITS))}")
        soft, hard = value if isinstance(value, (list, tuple)) else (value, value)
        checked[name] = [int(soft), int(hard)]
    return checked


def _ladder(climb: object) -> list[dict[str, Any]] | None:
    if climb is None:
        return None
    checked = []
    for rung in climb:  # type: ignore[attr-defined]
        name = str(rung.get("signal", "")).upper().removeprefix("SIG")
        target = rung.get("target", "command")
        if not isinstance(getattr(signal, "SIG" + name, None), signal.Signals) or target not in _TARGETS:
            raise BadArgument("stop_ladder", f"{rung!r} is no rung", "give {signal, target, wait_s} each")
        checked.append({"signal": name, "target": target, "wait_s": seconds(rung.get("wait_s", 0))})
    return checked


def _pass_fds(fds: Sequence[int]) -> list[int]:
    for fd in fds:
        if fd < 3:
            raise BadArgument("pass_fds", f"{fd} is one of the standard streams")
        os.fstat(fd)
    return list(fds)


def _log_cap(value: object) -> int:
    cap = size_bytes(value)
    if cap < LOG_CAP_MIN_BYTES:
        raise BadArgument("log_cap", f"{cap} bytes are too few", f"give at least {LOG_CAP_MIN_BYTES}")
    return cap


def _lifetime(options: StartOptions) -> dict[str, Any]:
    lifetime = _one_of("lifetime", options.get("lifetime", "detached"), ("detached", "owner", "call"))
    owner = None
    if lifetime == "owner":
        pid = options.get("owner_pid") or os.getpid()
        process = tree.look(pid)
        if process is None:
            raise BadArgument("owner_pid", f"no process {pid}")
        owner = {"pid": pid, "start": process.start}
    elif options.get("owner_pid") is not None:
        raise BadArgument("owner_pid", "only a session with lifetime='owner' has one")
    return {"lifetime": lifetime, "owner_process": owner}


def _one_of(name: str, value: object, allowed: tuple[str, ...]) -> str:
    if value not in allowed:
        raise BadArgument(name, f"{value!r} is not one of {', '.join(allowed)}")
    return str(value)
