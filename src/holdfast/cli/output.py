"""Output of the command line: answers to stdout, everything else to stderr; tables, colours, ages, errors."""

from __future__ import annotations

import errno
import os
import sys
import time

from ..core.clock import epoch
from ..errors import BadArgument

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence
    from re import Match
    from threading import Event
    from typing import Any

    from ..config import Config
    from ..errors import HoldfastError
    from ..model import Exit, Snapshot


_WRITE_BYTES = 1 << 16
# A command that takes longer says what it waits for.
_QUIET_S = 1.0
# Fixes for errors of the operating system.
_FIXES = {
    errno.ENOSPC: "free some space",
    errno.ENOENT: "check the path: it does not exist",
    errno.ENOTDIR: "check the path: a part of it is not a directory",
    errno.EISDIR: "name a file, not a directory",
    errno.EACCES: "name a file that you may use, or change its permissions",
    errno.EPERM: "name a file that you may use, or change its permissions",
    errno.EROFS: "name a file on a disk that can be written",
}


def say(text: str) -> None:
    sys.stdout.write(text + "\n")


def say_json(value: Any, *, lines: bool = False) -> None:
    """JSON, indented on a terminal; with `lines`, on one line."""
    import json

    indent = 2 if not lines and is_terminal(1) else None
    say(json.dumps(value, indent=indent, default=_as_json))


def note(text: str, head: str = "hold") -> None:
    """A message to the user. A closed stderr is not an error."""
    _to_stderr(f"{head}: {text}\n")


def below(text: str, head: str = "hold") -> None:
    """A note on a line of its own: the terminal may show `^C` or an unfinished line."""
    note(text, head=f"\n{head}" if is_terminal(2) else head)


def write(fd: int, data: bytes) -> None:
    """Write all bytes, also to a descriptor that is non-blocking."""
    view = memoryview(data)
    while view:
        try:
            view = view[os.write(fd, view[:_WRITE_BYTES]) :]
        except BlockingIOError:
            import select

            select.select([], [fd], [])


def is_terminal(fd: int) -> bool:
    try:
        return os.isatty(fd)
    except OSError:
        return False


class Awaiting:
    """On a terminal, from the first second on, a line that says what a long command waits for. It is removed at the
    end."""

    def __init__(self, what: Callable[[], str] | None) -> None:
        self._what = what
        self._over: Event | None = None

    def __enter__(self) -> None:
        if self._what is not None and is_terminal(2):
            from threading import Event, Lock, Thread

            self._over, self._lock, self._shown = Event(), Lock(), False
            Thread(target=self._show, args=(self._over, self._what), name="awaiting", daemon=True).start()

    def __exit__(self, *_: object) -> None:
        if self._over is not None:
            with self._lock:
                self._over.set()
                if self._shown:
                    _to_stderr("\r\x1b[K")

    def _show(self, over: Event, what: Callable[[], str]) -> None:
        from ..errors import HoldfastError

        while not over.wait(_QUIET_S):
            try:
                text = printable(f"hold: waiting for {what()}")
            except (HoldfastError, OSError):
                continue
            with self._lock:
                if not over.is_set():
                    self._shown = True
                    _to_stderr(f"\r\x1b[K{cut(text, (columns(2) or 80) - 1)}")


def complain(problem: Exception, *, as_json: bool, options: Collection[str] = (), near: str = "") -> int | None:
    """Print an error of a command that has these options; `near` precedes its fix. Returns the exit code; None if the
    error is a bug."""
    from ..errors import FAILED, HoldfastError

    if isinstance(problem, OSError):
        about = f"{problem.filename or repr('')}: " if isinstance(problem.filename, str) else ""
        reason = problem.strerror or str(problem)
        error = HoldfastError(about + reason, errno=problem.errno, path=problem.filename)
        error.fix = _FIXES.get(problem.errno or 0, "see `hold doctor`")
        error.exit_code = getattr(problem, "exit_code", FAILED)
    elif isinstance(problem, HoldfastError):
        error = problem
    else:
        return None
    message, fix = in_command_line_terms(error, options)
    fix = near + fix
    if as_json:
        import json

        _to_stderr(json.dumps({**error.to_json(), "message": message, "fix": fix}, default=_as_json) + "\n")
    else:
        # Lines of output in a message are indented: they cannot look like ours.
        note("\n  ".join(map(printable, message.split("\n  "))))
        note(printable(fix), head="fix")
    return error.exit_code


def _to_stderr(text: str) -> None:
    try:
        sys.stderr.write(text)
        sys.stderr.flush()
    except (OSError, ValueError):
        pass


def _as_json(value: Any) -> Any:
    to_json = getattr(value, "to_json", None)
    return to_json() if to_json is not None else str(value)


# Tables, colours, ages. Control characters are shown as text, never sent to the terminal.


RED, GREEN, YELLOW, DIM, BOLD = "31", "32", "33", "2", "1"
_NARROWEST = 20
# A column of a table other than the last.
_CELL_CHARACTERS = 32


class Style:
    """Whether to use colour, and the width of a line (None: unlimited)."""

    def __init__(self, colour: bool, width: int | None) -> None:
        self.colour = colour
        self.width = width

    def paint(self, text: str, *codes: str) -> str:
        return f"\x1b[{';'.join(codes)}m{text}\x1b[0m" if self.colour and codes and text else text


def style(config: Config, fd: int = 1) -> Style:
    terminal = is_terminal(fd)
    wanted = config.cli_color
    auto = terminal and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    return Style(wanted == "always" or (wanted == "auto" and auto), columns(fd) if terminal else None)


def columns(fd: int = 1) -> int | None:
    """The width of the terminal; None if unknown. Some terminals report 0."""
    given = os.environ.get("COLUMNS", "")
    if given.isascii() and given.isdecimal() and 0 < int(given) < 100_000:
        return int(given)
    try:
        return os.get_terminal_size(fd).columns or None
    except (OSError, ValueError):
        return None


def table(head: Sequence[str], rows: Sequence[Sequence[tuple[str, str]]], style: Style) -> str:
    """Lines of aligned columns; a cell is a text and a colour. A column without any text is left out."""
    kept = [n for n in range(len(head)) if any(row[n][0] for row in rows)]
    body = [[cut(printable(row[n][0]), _CELL_CHARACTERS if n != kept[-1] else None) for n in kept] for row in rows]
    widths = [max(width(line[n]) for line in [[head[k] for k in kept], *body]) for n in range(len(kept))]
    lines = [_line([(head[k], BOLD) for k in kept], widths, style)]
    for cells, row in zip(body, rows, strict=True):
        colours = [row[n][1] for n in kept]
        lines.append(_line(list(zip(cells, colours, strict=True)), widths, style))
    return "\n".join(lines)


def facts(pairs: Sequence[tuple[str, str]], style: Style) -> str:
    """`key  value`, one a line."""
    room = max(len(key) for key, _ in pairs)
    return "\n".join(f"{style.paint(key.ljust(room), DIM)}  {printable(value)}" for key, value in pairs)


def printable(text: str) -> str:
    """Show control characters and invisible characters as escapes."""
    if text.isascii() and text.isprintable():
        return text
    from ..terminal.text import visible

    shown = visible(text)
    return "".join(
        each if each.isprintable() or each == " " else ascii(each)[1:-1] for each in shown.replace("\t", " ")
    )


def age(then: str | None, now: float | None = None) -> str:
    """The time since then: 3s, 5m, 2h, 4d."""
    at = epoch(then)
    return "" if at is None else span((time.time() if now is None else now) - at)


def span(seconds: float) -> str:
    if seconds < 1:
        return f"{max(0, round(seconds * 1000))}ms" if seconds < 0.9995 else "1s"
    for unit, size, upto in (("s", 1, 100), ("m", 60, 5400), ("h", 3600, 48 * 3600)):
        if seconds < upto:
            return f"{int(seconds // size)}{unit}"
    return f"{int(seconds // 86400)}d"


def megabytes(count: int) -> str:
    """`3.0 MiB`."""
    amount, unit = float(count), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if amount < 1024:
            break
        amount, unit = amount / 1024, larger
    return f"{count} B" if unit == "B" else f"{amount:.1f} {unit}"


def outcome(exit: Exit) -> str:
    return f"code {exit.code}" if exit.signal is None else f"signal {exit.signal.removeprefix('SIG')}"


# How a stop went, in a listing and in full.
_STOPPED = {"kill": "stopped, killed", "at_once": "killed", "elsewhere": "killed externally"}
_STOPPED_IN_FULL = {
    "grace": "within the grace",
    "kill": "killed after the grace",
    "at_once": "killed at once",
    "elsewhere": "killed by another process within the grace",
}


def stop_words(exit: Exit) -> str:
    """How a command ended after a stop was requested."""
    return _STOPPED_IN_FULL.get(exit.stopped or "", "")


def state_words(shot: Snapshot) -> tuple[str, str]:
    """The state of a session or how it ended, in a few words, and their colour; with the output lost to a full disk."""
    words, colour = _state_words(shot)
    lost = lost_bytes(shot)
    return (f"{words}, {megabytes(lost)} lost", RED if colour == RED else YELLOW) if lost else (words, colour)


def lost_bytes(shot: Snapshot) -> int:
    lost: int = shot.metadata.get("lost_bytes") or 0
    return lost


def _until(then: str) -> str:
    return span(max(0.0, (epoch(then) or 0.0) - time.time()))


def _state_words(shot: Snapshot) -> tuple[str, str]:
    exit = shot.exit
    if shot.state == "lost":
        # No runner saw the end, but the host that stopped it recorded how.
        return _STOPPED.get(exit.stopped, "stopped") if exit is not None and exit.stopped else "lost", RED
    if exit is None:
        condition = shot.condition
        if condition == "restarting":
            planned = shot.metadata["restarting"]
            return f"restarting, attempt {planned['attempt']} in {_until(planned['at'])}", YELLOW
        if condition == "running":
            return "running" + (f", attempt {shot.attempt}" if shot.attempt > 1 else ""), GREEN
        return condition, RED if condition == "unhealthy" else YELLOW
    if exit.cause == "spawn_error":
        return "not started", RED
    how = f"exit {exit.code}" if exit.signal is None else outcome(exit)
    if exit.survivors:
        return f"{how}, {len(exit.survivors) + exit.survivors_more} still running", YELLOW
    if exit.cause == "signal" and exit.by:
        return f"{how} by {exit.by}", RED
    if exit.cause in ("exit", "signal"):
        return how, DIM if exit.code == 0 else RED
    if exit.cause == "stop":
        return _STOPPED.get(exit.stopped or "", "stopped"), DIM
    short = {"overall_timeout": "timeout", "idle_timeout": "idle", "owner_gone": "owner gone"}
    killed = ", killed" if exit.stopped == "kill" else ""
    return short.get(exit.cause, exit.cause.replace("_", " ")) + killed, RED


def _line(cells: list[tuple[str, str]], widths: list[int], style: Style) -> str:
    parts, used = [], 0
    for n, (text, colour) in enumerate(cells):
        if n == len(cells) - 1:
            room = None if style.width is None else max(_NARROWEST, style.width - used)
            parts.append(style.paint(cut(text, room), *filter(None, [colour])))
        else:
            padding = " " * (widths[n] - width(text) + 2)
            parts.append(style.paint(text, *filter(None, [colour])) + padding)
            used += widths[n] + 2
    return "".join(parts).rstrip()


def width(text: str) -> int:
    """Columns in a terminal: wide East Asian characters take two, combining characters none."""
    if text.isascii():
        return len(text)
    import unicodedata

    return sum(
        0 if unicodedata.combining(each) else 2 if unicodedata.east_asian_width(each) in "WF" else 1 for each in text
    )


def cut(text: str, room: int | None) -> str:
    """At most `room` columns; `…` replaces what was cut."""
    if room is None or width(text) <= room:
        return text
    while text and width(text) > room - 1:
        text = text[: -max(1, (width(text) - room) // 2)]
    return text + "…"


# An error of the library in the words of the command line: `--log-cap` instead of `log_cap=`.


# A keyword argument, with or without its value: `tty=True`, `stdin="open"`, `ready=`.
_KEYWORD = r"""\b([a-z][a-z_]*)=(?:True\b|"([^"]*)"|'([^']*)'|(?=[\s,;]|$))"""
_CALL = r"\b(run|start|restart|stop|wait)\(\)"
_NAME = r"\b[a-z]+(?:_[a-z]+)+\b"
_PHRASES = (
    ("as `literal`", "with `hold submit`, which presses Enter, or `hold send`"),
    ('with the size policy "fixed"', "with --size-policy fixed"),
    ("without tty", "without --tty"),
    ("with the role control", "without --observe"),
    ("or None to leave them out", "or leave them out with --unset-env"),
    ("read from dropped_before on", "leave --since out"),
)


def in_command_line_terms(error: HoldfastError, options: Collection[str]) -> tuple[str, str]:
    """The message and the fix, in terms of a command that has these options."""
    message, fix = error.message, error.fix
    for ours, theirs in _PHRASES:
        fix = fix.replace(ours, theirs)
    fix = _in_options(fix)
    if not isinstance(error, BadArgument):
        return (_in_options(message) if error.code == "unsupported" else message), fix
    argument = error.facts.get("argument")
    why = message.removeprefix(f"{argument}: ")
    if not isinstance(argument, str) or why == message:
        return message, fix
    named = next((each for each in (_spelt(argument), argument.upper()) if each in options), argument)
    return f"{named}: {_in_options(why)}", fix


def _in_options(text: str) -> str:
    from re import sub

    from ..model.options import START_OPTIONS

    def keyword(found: Match[str]) -> str:
        value = found[2] or found[3]
        return _spelt(found[1]) + (f" {value}" if value else "")

    def name(found: Match[str]) -> str:
        return _spelt(found[0]) if found[0] in START_OPTIONS else found[0]

    return sub(_NAME, name, sub(_KEYWORD, keyword, sub(_CALL, r"`hold \1`", text)))


def _spelt(keyword: str) -> str:
    from ..model.options import OPTIONS

    option = OPTIONS.get("labels" if keyword == "label key" else keyword)
    return option.flag if option is not None and option.flag else "--" + keyword.replace("_", "-")
