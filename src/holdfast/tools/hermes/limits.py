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
# A server prints what it has to say about its start within this.
SERVER_WAIT_S = 10.0
KILL_GRACE_S = 2.0
# For the files of the user's shell to be read, the end of a shell that hangs included.
PROFILE_S = 5.0
PROFILE_GRACE_S = 0.3
# One call of a sandbox that runs commands for us.
ENV_TIMEOUT_S = 10.0
# Between two calls that look for the end of a process: at first, and at most. No call waits for it in the sandbox, for
# the calls of others would wait as well.
ENV_PAUSE_S = 0.25
ENV_PAUSE_MAX_S = 2.0
# A look for an end that is to be announced and fails is repeated so often, after pauses that grow from the first to the
# last of these: for about three minutes.
ENV_RETRIES = 12
ENV_RETRY_S = 0.5
ENV_RETRY_MAX_S = 30.0

# Characters.
REPLY_CHARS = 200_000
OUTPUT_CHARS = 50_000
OUTPUT_HEAD_SHARE = 0.4
POLL_CHARS = 1000
WAIT_EXITED_CHARS = 2000
WAIT_RUNNING_CHARS = 1000
EVENT_CHARS = 2000
# Looking for secrets in more than this takes so long that others would wait for it.
LONG_CHARS = 1 << 20
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
# Said once each: they are read at every call.
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
