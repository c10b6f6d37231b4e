"""Failpoints: named places where a test kills, stops, fails or holds this process.

`HOLDFAST_POINTS="runner.spec_written=kill;log.rotate=2*error:ENOSPC;launcher.fd_passed=pause"`, where `2*` is
the second pass alone and `2+*` every pass from the second on. `HOLDFAST_OFF="pidfd,launcher"` switches
abilities off, so that their substitutes are tested as the main way.
A call site is `failpoints.hit("log.rotate")`: without a plan it costs one look into an empty dictionary.
"""

from __future__ import annotations

import errno
import os

from .kernel_signals import signal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Callable


ABILITIES = ("pidfd", "launcher", "rehearsal", "cgroup", "subreaper")
ACTIVE: bool = False

_EVERY_PASS = 2**63
_BARE_VERBS = ("kill", "stop", "pause", "notify")

# name -> [(first pass, last pass, verb, errno)]
_plan: dict[str, list[tuple[int, int, str, int]]] = {}
_passes: dict[str, int] = {}
_test_socket: str = ""
_off: frozenset[str] = frozenset()


# What a call site calls: without a plan, a look into a dictionary that is empty.
hit: Callable[[str], object] = _plan.get


def _hit(name: str) -> None:
    """Do what the plan says about this pass of the point."""
    steps = _plan.get(name)
    if steps is None:
        return
    _passes[name] = passed = _passes.get(name, 0) + 1
    for first, last, verb, number in steps:
        if not first <= passed <= last:
            continue
        if verb in ("kill", "stop"):
            os.kill(os.getpid(), signal.SIGKILL if verb == "kill" else signal.SIGSTOP)
        elif verb == "error":
            # The plain text of the kernel: the tested code must not be able to distinguish it from a real failure.
            raise OSError(number, os.strerror(number))
        else:
            _notify_test(verb, name)


def off(ability: str) -> bool:
    """Whether the tests switched this ability off."""
    if ability not in ABILITIES:
        raise ValueError(f"no ability {ability!r} can be switched off; there are {', '.join(ABILITIES)}")
    return ability in _off


def reload(environ: Mapping[str, str]) -> None:
    """Take the plan from this environment, with no pass counted: for a fork that was handed a new one."""
    global ACTIVE, hit, _plan, _passes, _test_socket, _off
    test_socket = environ.get("HOLDFAST_POINTS_SOCKET", "")
    plan = _parse_plan(environ.get("HOLDFAST_POINTS", ""))
    if not test_socket and any(step[2] in ("pause", "notify") for steps in plan.values() for step in steps):
        raise ValueError("HOLDFAST_POINTS: pause and notify need HOLDFAST_POINTS_SOCKET")
    switched_off = _parse_off(environ.get("HOLDFAST_OFF", ""))
    _plan, _passes, _test_socket, _off = plan, {}, test_socket, switched_off
    ACTIVE = bool(plan)
    hit = _hit if plan else _plan.get


def _notify_test(verb: str, name: str) -> None:
    import socket

    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as channel:
            channel.connect(_test_socket)
            channel.sendall(f"{verb} {name} {os.getpid()}\n".encode())
            if verb == "pause":
                channel.recv(1)
    except (ConnectionError, FileNotFoundError):
        # The test is over and will never release us: the same as its end of file.
        return


def _parse_plan(text: str) -> dict[str, list[tuple[int, int, str, int]]]:
    plan: dict[str, list[tuple[int, int, str, int]]] = {}
    for entry in text.split(";"):
        if not entry.strip():
            continue
        name, equals, action = (part.strip() for part in entry.partition("="))
        if not equals or not name.replace(".", "").replace("_", "").isalnum():
            raise ValueError(f"HOLDFAST_POINTS: {entry!r} is not of the form name=action")
        plan.setdefault(name, []).append(_parse_action(entry, action))
    return plan


def _parse_action(entry: str, action: str) -> tuple[int, int, str, int]:
    count, star, verb = action.rpartition("*")
    first, last = 1, _EVERY_PASS
    if star:
        onward = count.endswith("+")
        digits = count[:-1] if onward else count
        if not (digits.isascii() and digits.isdigit() and int(digits) >= 1):
            raise ValueError(f"HOLDFAST_POINTS: {entry!r}: {count!r} is not the number of a pass (1, 2, ... or 2+)")
        first = int(digits)
        last = _EVERY_PASS if onward else first
    if verb in _BARE_VERBS:
        return first, last, verb, 0
    word, colon, argument = verb.partition(":")
    if word != "error" or not colon:
        raise ValueError(f"HOLDFAST_POINTS: {entry!r}: the action is kill, stop, pause, notify or error:ERRNO")
    number = getattr(errno, argument, None)
    if not argument.startswith("E") or not isinstance(number, int):
        raise ValueError(f"HOLDFAST_POINTS: {entry!r}: {argument!r} is not the name of an errno")
    return first, last, word, number


def _parse_off(text: str) -> frozenset[str]:
    names = frozenset(part.strip() for part in text.split(",") if part.strip())
    unknown = sorted(names.difference(ABILITIES))
    if unknown:
        raise ValueError(f"HOLDFAST_OFF: no ability {', '.join(unknown)}; there are {', '.join(ABILITIES)}")
    return names


reload(os.environ)
