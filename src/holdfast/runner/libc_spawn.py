"""`posix_spawn` of the C library, called with a set of signals that `os.posix_spawn` cannot express.

glibc keeps signals 32 and 33 for its threads. It leaves them ignored in everything it spawns, unless they are in the
set of signals that go back to the default, and its `sigaddset`, which Python uses, refuses to put them there. A command
that was given ignored signals passes them on to all it starts. So the set is made here, bit by bit.

The numbers of the flags are those of Linux. Other systems have others (on macOS 0x80 starts the process suspended), and
get `os.posix_spawn`.
"""

from __future__ import annotations

import ctypes
import os
import sys

from .kernel_signals import signal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_SETPGROUP, _SETSIGDEF, _SETSIGMASK, _SETSID = 0x02, 0x04, 0x08, 0x80
# More than the opaque structures have in any C library; glibc and musl need 336 and 80 bytes.
_ROOM_BYTES = 1024
_SIGNALS = 64
_WORD_BITS = 8 * ctypes.sizeof(ctypes.c_ulong)
_Set = ctypes.c_ulong * (1024 // _WORD_BITS)

_ENCODING = sys.getfilesystemencoding()

_libc = ctypes.CDLL(None)
_EMPTY = _Set()
_ALL = _Set()
for _number in range(1, _SIGNALS + 1):
    if _number not in (signal.SIGKILL, signal.SIGSTOP):
        _ALL[(_number - 1) // _WORD_BITS] |= 1 << (_number - 1) % _WORD_BITS
_DEFAULTS = sorted(signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP})
# Made at the first use of each, and used for every start from then on.
_attributes: dict[bool, Any] = {}


def spawn(path: str, argv: list[str], environment: dict[str, str], actions: list[tuple[Any, ...]], setsid: bool) -> int:
    """The pid of a new process with every signal at its default and none blocked, as leader of its own process group,
    or of its own session with `setsid`. OSError as `os.posix_spawn` raises it, ValueError for what cannot be passed."""
    if sys.platform != "linux":
        group: dict[str, Any] = {"setsid": True} if setsid else {"setpgroup": 0}
        return os.posix_spawn(
            path, argv, environment, file_actions=actions, **group, setsigmask=[], setsigdef=_DEFAULTS
        )
    if any(not name or "=" in name for name in environment):
        raise ValueError("illegal environment variable name")
    words = _strings(argv)
    variables = _strings([f"{name}={value}" for name, value in environment.items()])
    (where,) = _encoded([path])
    if setsid not in _attributes:
        _attributes[setsid] = _make_attributes(setsid)
    steps = ctypes.create_string_buffer(_ROOM_BYTES)
    pid = ctypes.c_int()
    _check(_libc.posix_spawn_file_actions_init(steps))
    try:
        for action in actions:
            _check(_add(steps, action))
        _check(_libc.posix_spawn(ctypes.byref(pid), where, steps, _attributes[setsid], words, variables), path)
    finally:
        _libc.posix_spawn_file_actions_destroy(steps)
    return pid.value


def _make_attributes(setsid: bool) -> Any:
    attributes = ctypes.create_string_buffer(_ROOM_BYTES)
    flags = _SETSIGDEF | _SETSIGMASK | (_SETSID if setsid else _SETPGROUP)
    _check(_libc.posix_spawnattr_init(attributes))
    _check(_libc.posix_spawnattr_setflags(attributes, ctypes.c_short(flags)))
    _check(_libc.posix_spawnattr_setpgroup(attributes, ctypes.c_int(0)))
    _check(_libc.posix_spawnattr_setsigmask(attributes, _EMPTY))
    _check(_libc.posix_spawnattr_setsigdefault(attributes, _ALL))
    return attributes


def _add(steps: Any, action: tuple[Any, ...]) -> int:
    if action[0] == os.POSIX_SPAWN_DUP2:
        return int(_libc.posix_spawn_file_actions_adddup2(steps, action[1], action[2]))
    _, fd, path, flags, mode = action
    return int(_libc.posix_spawn_file_actions_addopen(steps, fd, *_encoded([path]), flags, mode))


def _strings(values: list[str]) -> Any:
    return (ctypes.c_char_p * (len(values) + 1))(*_encoded(values))


def _encoded(values: list[str]) -> list[bytes]:
    found = [value.encode(_ENCODING, "surrogateescape") for value in values]
    if any(b"\0" in value for value in found):
        raise ValueError("embedded null byte")
    return found


def _check(number: int, path: str | None = None) -> None:
    if number:
        raise OSError(number, os.strerror(number), path)
