"""Sessions and what they printed, as this toolset shows them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from ...model import STALE, STARTING, UNREACHABLE
from ...places import LOCAL
from ...runner.kernel_signals import NUMBERS
from . import limits, scope, texts
from .lines import only_stream

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    from ...host.aio import AsyncSession
    from ...model import Exit, Snapshot

    Shown = Callable[[str], str]

# What shells say of a terminal that they do not have. It helps nobody.
_NOISE = (
    "no job control in this shell",
    "cannot set terminal process group",
    "tcsetattr: Inappropriate ioctl for device",
)
# As much of it as there may be.
_NOISE_BYTES = 2048
_REASONS = {
    "stop": "killed",
    "owner_gone": "killed",
    "overall_timeout": "timed_out",
    "idle_timeout": "timed_out",
    "ttl": "timed_out",
    "lost": "lost",
    "spawn_error": "failed_start",
}
_MEANINGS = {
    ("grep", 1): "no lines matched",
    ("rg", 1): "no lines matched",
    ("diff", 1): "the files differ",
    ("test", 1): "the condition is false",
    ("[", 1): "the condition is false",
    ("find", 1): "some directories could not be read",
    ("curl", 6): "the host name could not be resolved",
    ("curl", 7): "the connection failed",
    ("curl", 22): "the server answered with an error status",
    ("curl", 28): "the operation timed out",
    ("git", 1): "often no error: differences were found, or nothing was there to do",
}
_NEWEST_BYTES = 32 << 10
# What a shell reads as one piece, and in the group what ends a command.
_PIECE = re.compile(r"""\\.|'[^']*'|"(?:\\.|[^"\\])*"|(&&|\|\||[;|\n])|[^\\'"&|;\n]+|.""", re.DOTALL)
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=")


def exit_code(code: int | None, signal: str | None) -> int | None:
    """0 to 255, or -N for signal N; None where neither was seen."""
    if code is not None or signal is None:
        return code
    number = NUMBERS.get(signal) or signal.removeprefix("SIG")
    return -int(number) if str(number).isdecimal() else None


def reason(cause: str) -> str:
    return _REASONS.get(cause, "exited")


def source(cause: str, by: str | None, *, foreground: bool) -> str:
    """Who or what ended it; empty for a command that ended by itself."""
    if cause == "overall_timeout":
        return "terminal.timeout" if foreground else "terminal.deadline"
    if cause in ("idle_timeout", "ttl", "owner_gone", "out_of_memory"):
        return by or cause
    if cause in ("lost", "spawn_error"):
        return {"lost": "backend_lost", "spawn_error": "failed_start"}[cause]
    return by or "" if cause == "stop" else ""


def meaning(command: str, code: int | None) -> str | None:
    """What an exit code that looks like trouble usually means."""
    if code is None or code == 0:
        return None
    if code < 0 or 128 < code <= 128 + 64:
        number = -code if code < 0 else code - 128
        names = [name for name, each in NUMBERS.items() if each == number]
        said = f"ended by signal {number}" + (f" ({names[0]})" if names else "")
        return said if code < 0 else f"usually {said}"
    words = _last_command(command).split()
    words = [word for word in words if not _ASSIGNMENT.match(word)] or [""]
    return _MEANINGS.get((words[0].rsplit("/", 1)[-1], code))


def _last_command(command: str) -> str:
    text = command.rstrip(" \t\n;")
    ends = [piece.end() for piece in _PIECE.finditer(text) if piece.group(1)]
    return text[ends[-1] :] if ends else text


def is_foreground(shot: Snapshot) -> bool:
    return shot.labels.get(scope.MODE) in (scope.FOREGROUND, scope.YIELDED)


def how_it_ended(shot: Snapshot, exit: Exit) -> dict[str, Any]:
    return {
        "exit_code": exit_code(exit.code, exit.signal),
        "completion_reason": reason(exit.cause),
        "termination_source": source(exit.cause, exit.by, foreground=is_foreground(shot)),
    }


def status(shot: Snapshot) -> str:
    return "exited" if scope.is_over(shot) else "running"


def health(shot: Snapshot) -> dict[str, Any]:
    """Of a session that is not plainly running or over."""
    if shot.state in (UNREACHABLE, STALE, STARTING):
        detached = {"detached": True} if shot.state == STALE else {}
        note = texts.AWAY if shot.state == UNREACHABLE and shot.place != LOCAL else texts.HEALTH[shot.state]
        return {"health": shot.state, "note": note, **detached}
    return {} if shot.health in (None, "healthy") else {"health": shot.health, "note": texts.UNHEALTHY}


def with_health(facts: dict[str, Any], shot: Snapshot) -> dict[str, Any]:
    """Beside what else there is to note."""
    found = health(shot)
    notes = [each["note"] for each in (facts, found) if "note" in each]
    return facts | found | ({"note": "; ".join(notes)} if notes else {})


def place(shot: Snapshot) -> dict[str, Any]:
    """Of a session in another place: its pid is one there."""
    return {} if shot.place == LOCAL else {"place": shot.place, "pid_scope": "sandbox"}


def survivors(exit: Exit | None) -> dict[str, Any]:
    return {} if exit is None or not exit.survivors else {"survivors": [each["pid"] for each in exit.survivors]}


def uptime(shot: Snapshot) -> int:
    return int(scope.since(shot.started_at or shot.created_at, shot.ended_at) or 0)


def local_time(text: str | None) -> str:
    found = scope.moment(text)
    return "" if found is None else found.astimezone().strftime("%Y-%m-%dT%H:%M:%S")


# Output.


def noise(lines: Sequence[str]) -> int:
    """How many lines at the beginning are nothing but that."""
    others = (number for number, line in enumerate(lines) if not any(each in line for each in _NOISE))
    return next(others, len(lines))


def without_noise(text: str) -> str:
    # Seldom more than two; what follows may be long.
    while any(each in text.partition("\n")[0] for each in _NOISE):
        text = text.partition("\n")[2]
    return text


async def nothing_before(session: AsyncSession, stream: str, offset: int) -> bool:
    """Does output begin here, but for lines of noise?"""
    if offset == 0:
        return True
    if offset > _NOISE_BYTES or session.dropped_before.get(stream, 0):
        return False
    text = (await session.read(f"{stream}:0", stream=stream, limit=offset)).text
    return text.endswith("\n") and not without_noise(text)


async def tail(session: AsyncSession, characters: int, shown: Shown) -> tuple[str, bool]:
    """The last so many characters of output, from a line start, and whether there is more before them."""
    seen, cut, _ = await newest(session, characters, shown)
    return seen, cut


async def newest(session: AsyncSession, characters: int, shown: Shown) -> tuple[str, bool, str]:
    """As `tail`, and the cursor behind it."""
    if session.metadata.get("alt_screen") and not scope.is_over(session):
        cursor = session.cursor
        return *last(shown((await session.screen()).text), characters), cursor
    text, whole, cursor = await _newest(session, characters)
    seen, cut = last(shown(without_noise(text) if whole else text), characters)
    return seen, cut or not whole, cursor


async def _newest(session: AsyncSession, characters: int) -> tuple[str, bool, str]:
    """Text that holds so many of the last characters, whether it is all there is, and the cursor behind it."""
    stream = only_stream(session)
    if stream is None or session.tty:
        # No line is shorter than its end, so that so many lines are enough.
        cursor = session.cursor
        text = await session.tail(characters)
        return text, len(text.splitlines()) < characters, cursor
    begin, end = session.dropped_before.get(stream, 0), session.ends.get(stream, 0)
    # Colours and progress are left out of the text; a line may be long.
    start = max(begin, end - max(_NEWEST_BYTES, 4 * characters))
    if start == end:
        return "", begin == 0, session.cursor
    page = await session.read(f"{stream}:{start}", stream=stream, limit=end - start)
    if page.more or not scope.is_over(session):
        page = page.whole()
    text = page.text
    if start > begin and "\n" in text[:-1]:
        text = text.partition("\n")[2]
    return text, start == 0, page.cursor


def last(text: str, characters: int) -> tuple[str, bool]:
    """The end of it from a line start, and whether something was left out. A line that alone is too long is cut."""
    if len(text) <= characters:
        return text, False
    room = max(1, characters - len(texts.CUT) - 1)
    kept = text[-room:]
    border = kept.find("\n")
    if text[-room - 1] != "\n" and 0 <= border < len(kept) - 1:
        kept = kept[border + 1 :]
    return f"{texts.CUT}\n{kept}", True


def window(text: str, characters: int = limits.OUTPUT_CHARS) -> tuple[str, bool]:
    """The beginning and the end of it, cut at line borders, with a count of what is missing between them."""
    if len(text) <= characters:
        return text, False
    head = text[: int(characters * limits.OUTPUT_HEAD_SHARE)]
    if "\n" in head:
        head = head[: head.rindex("\n") + 1]
    end = text[-int(characters * (1 - limits.OUTPUT_HEAD_SHARE)) :]
    if "\n" in end[:-1]:
        end = end[end.index("\n") + 1 :]
    missing = text[len(head) : len(text) - len(end)]
    mark = texts.left_out(len(missing), missing.count("\n") + (not missing.endswith("\n")))
    return f"{head}{'' if head.endswith(chr(10)) else chr(10)}{mark}\n{end}", True


def within(lines: Sequence[str], characters: int, *, from_end: bool) -> list[str]:
    """As many whole lines as fit, at least one; of one that alone is too long, the part on the side that counts."""
    kept: list[str] = []
    room = characters
    for line in reversed(lines) if from_end else lines:
        room -= len(line) + 1
        if room < 0 and kept:
            break
        kept.append(line[-characters:] if from_end else line[:characters])
    return kept[::-1] if from_end else kept
