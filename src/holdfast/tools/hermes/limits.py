"""The numbers of this toolset."""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping


# Seconds.
TIMEOUT_S = 180
FOREGROUND_CAP_S = 600
# A server reports its start within this time.
SERVER_WAIT_S = 10.0
KILL_GRACE_S = 2.0
# Reading the files of the user's shell.
PROFILE_S = 4.5
# One call of a sandbox that runs commands for us.
ENV_TIMEOUT_S = 10.0
# The pause between two calls that look for the end of a process: at first, and at most. No call waits for the end in
# the sandbox, because other calls would have to wait as well.
ENV_PAUSE_S = 0.25
ENV_PAUSE_MAX_S = 2.0

# Characters.
REPLY_CHARS = 200_000
OUTPUT_CHARS = 50_000
OUTPUT_HEAD_SHARE = 0.4
POLL_CHARS = 1000
WAIT_EXITED_CHARS = 2000
WAIT_RUNNING_CHARS = 1000
EVENT_CHARS = 2000
LIST_COMMAND_CHARS = 200
LIST_PREVIEW_CHARS = 200

# Lines and rows.
LOG_LINES = 200
LOG_LINES_MAX = 5000
LIST_ROWS = 64
LIST_AGE_S = 1800
RUNNING_HINT = 64
PTY_SIZE = (30, 120)

# Hexadecimal digits of an id: all, and the fewest of a prefix.
ID_DIGITS = 12
PREFIX_DIGITS = 4


_log = logging.getLogger("holdfast.tools.hermes")
# Each warning once: the variables are read at every call.
_warned: set[tuple[str, str]] = set()


def timeout_s(environ: Mapping[str, str] = os.environ) -> int:
    return _whole(environ, "TERMINAL_TIMEOUT", TIMEOUT_S)


def foreground_cap_s(environ: Mapping[str, str] = os.environ) -> int:
    return _whole(environ, "TERMINAL_MAX_FOREGROUND_TIMEOUT", FOREGROUND_CAP_S)


def _whole(environ: Mapping[str, str], name: str, default: int) -> int:
    text = environ.get(name, "").strip()
    if not text:
        return default
    if not (text.isascii() and text.isdecimal() and int(text) > 0):
        if (name, text) not in _warned:
            _warned.add((name, text))
            _log.warning("%s=%a is not a number of seconds of at least 1; %d is used", name, text[:40], default)
        return default
    return int(text)
