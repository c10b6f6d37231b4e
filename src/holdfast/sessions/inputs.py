"""Input: bytes, keys, pastes, submitted text and end of file, and what to wait for afterwards."""

from __future__ import annotations

from ..core import wire
from ..errors import BadArgument, NotATty, TooLarge
from ..model import Typed, seconds
from .observe import read_files

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from typing import Any

    from .core import Core


if TYPE_CHECKING:
    Part = dict[str, Any]

_ENTER_DELAY_MAX_MS = 5000
_KEY_DELAY_MAX_MS = 2000
# Room for what a request contains besides its parts.
_ROOM_BYTES = 4096
# A paste that does not fit into one frame is sent in pieces. This many characters always fit, however they are escaped.
_PIECE_CHARACTERS = 128 << 10
_CLEANED = "paste_cleaned: "
_WAIT_S = 30.0
# Waiting for a runner that says nothing about the input ends this long after the time for the result.
_LATE_S = 0.7


async def write(core: Core, id: str, data: str | bytes, wait_for: Mapping[str, Any] | None = None) -> Typed:
    """Bytes as given, text as UTF-8, nothing appended."""
    raw = _bytes("data", data) if isinstance(data, str) else bytes(data)
    if len(raw) > wire.UNIT_MAX_BYTES:
        raise TooLarge("one piece of input", wire.UNIT_MAX_BYTES)
    return await _asked(core, id, "write", {"base64": wire.as_text(raw)}, wait_for)


async def keys(
    core: Core, id: str, tokens: Iterable[str], delay_ms: int = 0, wait_for: Mapping[str, Any] | None = None
) -> Typed:
    """Named keys, in order; all of them are known before the first is typed."""
    return await _type(core, id, of_keys(tokens, delay_ms), wait_for)


async def paste(
    core: Core,
    id: str,
    text: str,
    bracketed: str = "auto",
    raw: bool = False,
    submit: bool = False,
    wait_for: Mapping[str, Any] | None = None,
) -> Typed:
    parts = of_paste(text, bracketed, raw)
    after = _enter_after(_enter_delay_ms(core)) if submit else []
    if len(text) > _PIECE_CHARACTERS and not _fits_a_frame(parts + after):
        return await _paste_in_pieces(core, id, parts[0], after, wait_for)
    return await _type(core, id, parts + after, wait_for)


async def _paste_in_pieces(
    core: Core, id: str, part: Part, after: list[Part], wait_for: Mapping[str, Any] | None
) -> Typed:
    """A paste of any size: one request after the other, each when the program has taken the one before."""
    _check_waits(wait_for)
    if not read_files(core.home, id).spec.get("tty"):
        raise NotATty(id)
    text: str = part["paste"]
    typed = Typed(0, cursor=core.log(id).cursor(), parts=1 + len(after))
    _, connection = await core.connect(id)
    try:
        if "paste_pieces" not in connection.hello.get("features", ()):
            fix = "restart the session with this release, or paste less at once"
            raise TooLarge("a paste into a session of an older release", _PIECE_CHARACTERS, fix, unit="characters")
        reply_s = core.config.hosts_reply_timeout
        begin, removed, warnings = 0, 0, list[str]()
        while begin < len(text):
            end = begin + _PIECE_CHARACTERS
            if text[end - 1 : end + 1] == "\r\n":
                end += 1  # one line end, not two
            piece = "first" if not begin else "middle" if end < len(text) else "last"
            parts = [{**part, "paste": text[begin:end], "piece": piece}, *(after if end >= len(text) else [])]
            taken, added = await connection.put(reply_s, parts=parts)
            typed.accepted += taken
            for warning in added:
                if warning.startswith(_CLEANED):
                    removed += int(warning[len(_CLEANED) :].split()[0])
                elif warning not in warnings:
                    warnings.append(warning)
            begin = end
    finally:
        connection.close()
    if removed:
        warnings.insert(0, f"{_CLEANED}{removed} control characters were removed")
    typed.written, typed.warnings, typed.state = typed.accepted, warnings, connection.hello["status"]["state"]
    return await wait_behind(core, id, typed, wait_for)


async def submit(
    core: Core,
    id: str,
    text: str = "",
    enter_delay_ms: int | None = None,
    wait_for: Mapping[str, Any] | None = None,
) -> Typed:
    """Text, then Enter as a write of its own, a moment later: programs that distinguish typing from pasting by time
    swallow one that comes with its text. Text of several lines goes as a paste where the program takes one."""
    if enter_delay_ms is None:
        enter_delay_ms = _enter_delay_ms(core)
    return await _type(core, id, of_submit(text, enter_delay_ms), wait_for)


async def eof(core: Core, id: str, wait_for: Mapping[str, Any] | None = None) -> Typed:
    """The end of input: the pipe is closed, or the key that means it is typed."""
    return await _asked(core, id, "close_stdin", {}, wait_for)


# The parts of one unit, as a runner takes them.


def of_keys(tokens: Iterable[str], delay_ms: int = 0) -> list[Part]:
    from ..terminal.keys import parse

    parts: list[Part] = []
    for part in parse(tokens):
        if parts and _delay("delay_ms", delay_ms, _KEY_DELAY_MAX_MS):
            parts.append({"pause": delay_ms})
        parts.append(part)
    if not parts:
        raise BadArgument("keys", "no key is named", "give some, such as Enter, C-c or Up")
    return parts


def of_paste(text: str, bracketed: str = "auto", raw: bool = False) -> list[Part]:
    if bracketed not in ("auto", "always", "never"):
        raise BadArgument("bracketed", f"{bracketed!r} is not one of auto, always, never")
    return [{"paste": text, "bracketed": bracketed, "raw": raw}]


def of_submit(text: str, enter_delay_ms: int) -> list[Part]:
    if not text:
        return [{"enter": True}]
    lines = text.count("\n") + text.count("\r")
    typed: Part = {"paste": text, "bracketed": "auto", "raw": False} if lines else {"text": text}
    return [typed, *_enter_after(enter_delay_ms)]


def _enter_after(delay_ms: int) -> list[Part]:
    paused = _delay("enter_delay_ms", delay_ms, _ENTER_DELAY_MAX_MS)
    return [{"pause": delay_ms}, {"enter": True}] if paused else [{"enter": True}]


def _enter_delay_ms(core: Core) -> int:
    return round(core.config.terminal_enter_delay * 1000)


def _bytes(argument: str, text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as problem:
        why = f"holds a character that has no bytes, {text[problem.start]!a} at {problem.start}"
        raise BadArgument(argument, why, "give bytes for data that is not text") from None


def _delay(name: str, value: object, high: int) -> bool:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= high:
        raise BadArgument(name, f"{value!r} is not a whole number from 0 to {high}")
    return value > 0


async def _type(core: Core, id: str, parts: list[Part], wait_for: Mapping[str, Any] | None) -> Typed:
    files = read_files(core.home, id)
    if not files.spec.get("tty"):
        raise NotATty(id)
    # Its runner would hang up on a larger one, which looks as if it were gone.
    if not _fits_a_frame(parts):
        raise TooLarge("what is typed in one call, as it is sent,", wire.FRAME_MAX_BYTES - _ROOM_BYTES)
    return await _asked(core, id, "write", {"parts": parts}, wait_for)


def _fits_a_frame(parts: list[Part]) -> bool:
    """One request is typed as a whole: what the terminal answers meanwhile comes after it."""
    return len(wire.control({"type": "write", "parts": parts})) <= wire.FRAME_MAX_BYTES - _ROOM_BYTES


async def _asked(core: Core, id: str, type: str, fields: dict[str, Any], wait_for: Mapping[str, Any] | None) -> Typed:
    _check_waits(wait_for)
    cursor = core.log(id).cursor()
    reply = await core.request(id, type, _within(core, id, wait_for), **fields)
    typed = Typed(
        reply.get("accepted", 0),
        cursor=cursor,
        parts=reply.get("parts", 1),
        state=reply["status"]["state"],
        warnings=reply.get("warnings", ()),
        written=reply.get("written"),
    )
    return await wait_behind(core, id, typed, wait_for)


def _within(core: Core, id: str, wait_for: Mapping[str, Any] | None) -> float | None:
    """How long the runner may take to accept the input, where that is less than usual. A link to another place may
    have to be opened first."""
    timeout = wait_for.get("timeout", _WAIT_S) if wait_for else None
    if timeout is None or read_files(core.home, id).away:
        return None
    return seconds(timeout, "timeout") + _LATE_S


def _check_waits(wait_for: Mapping[str, Any] | None) -> None:
    if not wait_for:
        return
    from .wait import ALSO_AFTER_INPUT, WAIT_OPTIONS

    known = [name for name, option in WAIT_OPTIONS.items() if option.group == ALSO_AFTER_INPUT]
    unknown = sorted(set(wait_for) - set(known))
    if unknown:
        raise BadArgument("wait_for", f"no condition {unknown[0]!r}", f"one or more of {', '.join(known)}")


async def wait_behind(core: Core, id: str, typed: Typed, wait_for: Mapping[str, Any] | None) -> Typed:
    """Wait for the result of the input, if that was requested."""
    if wait_for:
        from .wait import wait

        typed.woke = await wait(core, id, since=typed.cursor, **{"timeout": _WAIT_S, **wait_for})
    return typed
