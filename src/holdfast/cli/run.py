"""Run a command like the shell does: print its output as it comes, and exit with its code (128+n for signal n). The
exit code is 127 if the command is not found, 126 if it cannot be executed, 124 if its --timeout stopped it, and 125 if
Holdfast itself failed.

Its log is kept, and it outlives `hold run`: if `hold run` is killed or its terminal is closed, the command keeps
running, unless --lifetime call ties it to `hold run`. Ctrl-C is passed on to the command; a second Ctrl-C leaves it
running.

With --tty in a terminal, the command gets its own terminal, and `hold run` attaches to it as `hold attach` does. With
--wait, a command that is still running after that time keeps running: its id is printed, and the exit code is 0.
"""

from __future__ import annotations

import errno
import os
import shlex
import signal
import time

from ..errors import TIMED_OUT
from ..errors import USAGE as USAGE_ERROR
from .host import open_home
from .options import COMMAND_HELP, add_start_options, pour_beside, print_notes, reaching, requested
from .output import below, columns, is_terminal, note, printable, say, say_json, write
from .parsing import Namespace, Parser, add_json, duration

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import FrameType

    from ..model import Exit
    from ..model.options import StartOptions
    from ..sessions.api import Session
    from ..sessions.core import Core
    from ..sessions.run import Foreground
    from ..sessions.start_request import Command
    from ..terminal.undo import Undo
    from .options import Source


RUN_HELP = __doc__ or ""

RUN_USAGE = "[--wait T] [OPTION...] -- CMD..."
RUN_EXAMPLES = """
hold run -- pytest -q
hold run --wait 10s -- make              10 seconds of output; then it runs in the background
make 2>&1 | hold run -- sort             passes on stdin, if that is a pipe or a file
hold run -t -- vim notes.txt             on a terminal of its own
hold run --lifetime call -- ./server     ends when `hold run` ends
"""

# The codes of `timeout`, `env` and `docker run` for a failure of their own, not of the command.
OWN_FAILURE = 125
NOT_EXECUTABLE, NOT_FOUND = 126, 127
_WHY_MISSING = {
    "disk": "not stored (disk full)",
    "dropped": "deleted from the log (its cap)",
    "missing": "in removed log files",
    "unreadable": "in log files that cannot be read",
}
# Programs that need a terminal, and those that do without arguments.
_FULL_SCREEN = ("vim", "vi", "view", "nvim", "nano", "pico", "emacs", "micro", "hx", "kak", "mc", "tmux", "screen")
_PROMPTS = (
    *("python", "python3", "ipython", "ipython3", "node", "irb", "ghci", "lua", "R", "julia", "psql", "sqlite3"),
    *("bash", "zsh", "fish", "sh", "dash", "ksh", "bc", "gdb", "redis-cli"),
)
# What a program prints that opens a terminal and finds none.
_COMPLAINTS = (
    *(b"/dev/tty", b"not a tty", b"not a terminal", b"not from a terminal", b"not to a terminal", b"opening terminal"),
    *(b"failed tty get", b"inappropriate ioctl", b"requires a terminal", b"requires a tty"),
)
_TAIL_BYTES = 2048
# The alternate screen, which a program of the whole screen turns on; the length is that of the longest.
_WHOLE_SCREEN, _WHOLE_SCREEN_BYTES = rb"\x1b\[\?(?:47|1047|1049)h", 8
_OUR_OUTPUT = {"stdout": 1, "stderr": 2, "tty": 1}


def run_arrange(parser: Parser) -> None:
    parser.description = f"{RUN_HELP}\n{COMMAND_HELP}"
    parser.add_argument("--wait", type=duration("--wait"), metavar="T", help="wait at most this long")
    add_json(parser, "only the session, when it has ended or --wait is over")
    add_start_options(parser)


def run_main(args: Namespace) -> int:
    from ..errors import HoldfastError

    try:
        return _run(args, *requested(args, "hold run"))
    except (HoldfastError, OSError) as problem:
        if getattr(problem, "exit_code", None) != USAGE_ERROR:
            problem.exit_code = _failed_with(problem)  # type: ignore[union-attr]
        raise


def _failed_with(problem: Exception) -> int:
    """The code of a shell for a command that is not found or cannot be executed; else that of our own failure."""
    from ..errors import SpawnError

    if isinstance(problem, SpawnError) and problem.step in ("exec", "interpreter"):
        return NOT_FOUND if problem.errno == errno.ENOENT else NOT_EXECUTABLE
    return OWN_FAILURE


def _run(args: Namespace, command: Command, options: StartOptions) -> int:
    rest: Source | None = getattr(args, "rest", None)
    if args.notify_people:
        # With `auto`, an end that this command shows is not sent to people.
        options.setdefault("notify", "exit")
    attaches = options.get("tty") and is_terminal(0) and is_terminal(1)
    with open_home(need_config=True) as hf:
        is_open = args.stdin is None and args.input is None and not options.get("tty") and _has_input()
        if is_open and hf.config.sources()["start.stdin"] == "default":
            options["stdin"] = "open"
        if attaches and rest is None and args.wait is None and not args.json:
            return _attached(hf._core, command, options, clipboard=args.clipboard)
        run = _Run(hf._core, options.get("lifetime", "detached"), quiet=args.json)
        return run.start_and_show(command, options, args.wait, rest)


def _has_input() -> bool:
    """Whether our input is a pipe or a file, which the command is to read."""
    import stat

    try:
        mode = os.fstat(0).st_mode
    except OSError:
        return False
    return stat.S_ISFIFO(mode) or stat.S_ISREG(mode)


def _program(command: Command) -> tuple[str, int]:
    """Its name, and how many words the command has."""
    words = command.split() if isinstance(command, str) else list(command)
    return os.path.basename(words[0]) if words else "", len(words)


def _lacked_terminal(command: Command, exit: Exit, tail: bytes) -> bool:
    """Whether it ended because it has no terminal: a prompt at the end of its input, or what it printed last."""
    name, words = _program(command)
    complains = exit.code != 0 and any(complaint in tail.lower() for complaint in _COMPLAINTS)
    return complains or (name in _PROMPTS and words == 1)


def _hint(command: Command) -> None:
    line = shlex.join([command] if isinstance(command, str) else command)
    note(f"needs a terminal? `hold run -t -- {printable(line)}`")


def _attached(core: Core, command: Command, options: StartOptions, *, clipboard: bool) -> int:
    """On a terminal of its own, as large as ours, attached from the beginning. The detach key leaves it running."""
    from ..sessions.api import Session
    from ..sessions.driver import drive
    from ..sessions.run import foreground
    from ..terminal.keys import detach_key
    from .attach_loop import AttachLoop, AttachOptions
    from .own_terminal import OwnTerminal

    key = detach_key(core.config.terminal_detach_key)
    own = OwnTerminal(0, 1)
    size = own.size()
    own.close()
    if size is not None:
        options.setdefault("size", size)
    with reaching(options):
        run = drive(foreground(core, command, options))
    try:
        rows = core.config.terminal_history_rows
        attach = AttachOptions(since="start", key=key, history_rows=rows, clipboard=clipboard, backpressure=True)
        session = Session(core, run.seen.snapshot())
        print_notes(session)
        loop = AttachLoop(session, attach)
        code = loop.run()
        if session.refresh().exit is not None:
            drive(run.confirm_end())
        if loop.missing:
            note(missing_output(loop.missing))
            return OWN_FAILURE
        timed_out = session.exit is not None and session.exit.cause == "overall_timeout"
        return TIMED_OUT if timed_out else code
    finally:
        run.close()


class _Leave(Exception):
    """`hold run` has to end before the command: by a signal, or because its output has no reader any more."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


class _Run:
    """`hold run` without a terminal of its own."""

    def __init__(self, core: Core, lifetime: str, *, quiet: bool) -> None:
        self._core = core
        self._lifetime = lifetime
        self._quiet = quiet
        self._session: Session | None = None
        self._interrupts = 0
        # Signals that came before the session was started.
        self._early: list[int] = []
        self._last_byte = b"\n"
        self._tail = b""
        # Bytes of output that could not be read, by reason.
        self._missing: dict[str, int] = {}
        # Of our terminal, if the output turned on the alternate screen.
        self._undo: Undo | None = None

    def start_and_show(self, command: Command, options: StartOptions, wait: float | None, rest: Source | None) -> int:
        from ..sessions.api import Session
        from ..sessions.driver import drive
        from ..sessions.run import foreground

        self._listen()
        until = None if wait is None else time.monotonic() + wait
        with reaching(options):
            run = drive(foreground(self._core, command, options, backpressure=not self._quiet))
        try:
            self._session = session = Session(self._core, run.seen.snapshot())
            print_notes(session)
            on_pipes = not options.get("tty") and options.get("stdin") != "open" and is_terminal(0) and is_terminal(2)
            hinted = on_pipes and not self._quiet and _program(command)[0] in _FULL_SCREEN
            if hinted:
                _hint(command)  # some of them wait for keys that cannot come
            self._interrupts = 0
            try:
                for number in self._early:
                    self._on_signal(number, None)
                if rest is not None or options.get("stdin") == "open":
                    pour_beside(self._core, session.id, rest, close=not options.get("tty"))
                if self._quiet:
                    session.wait(exit=True, timeout=None if until is None else max(0.0, until - time.monotonic()))
                else:
                    self._show(run, until)
                session.refresh()
            except _Leave as leave:
                return self._leave(leave.number, ends=self._lifetime == "call" and run.is_new)
            if session.exit is None and session.state != "lost":
                missing = self._report_missing()
                if not missing and self._lifetime == "call":
                    drive(run.outlive_call())
                return missing or self._stay_behind(session)
            drive(run.confirm_end())
            code = self._ended(session)
            if (
                on_pipes
                and not hinted
                and not self._quiet
                and session.exit
                and (self._undo is not None or _lacked_terminal(command, session.exit, self._tail))
            ):
                _hint(command)
            return self._report_missing() or code
        finally:
            run.close()

    def _show(self, run: Foreground, until: float | None) -> None:
        """Write the output until the command has ended or the time has passed."""
        from ..sessions.driver import drive_each

        try:
            for page in drive_each(run.pages(until)):
                for stream, _, data in page.chunks:
                    self._write(_OUR_OUTPUT[stream], data)
                    self._tail = (self._tail + data[-_TAIL_BYTES:])[-_TAIL_BYTES:]
                    if stream != "stderr":
                        self._last_byte = data[-1:]
                for gap in page.gaps:
                    self._missing[gap.reason] = self._missing.get(gap.reason, 0) + gap.stop - gap.start
        finally:
            self._restore_screen()

    def _write(self, fd: int, data: bytes) -> None:
        if is_terminal(fd):
            self._watch_screen(data)
        try:
            write(fd, data)
        except OSError as problem:
            # The reader is gone, or the terminal was closed.
            raise _Leave(signal.SIGPIPE if isinstance(problem, BrokenPipeError) else signal.SIGHUP) from None

    def _watch_screen(self, data: bytes) -> None:
        if self._undo is None:
            import re

            data = self._tail[-_WHOLE_SCREEN_BYTES + 1 :] + data
            found = re.search(_WHOLE_SCREEN, data)
            if found is None:
                return
            from ..terminal.undo import Undo

            self._undo, data = Undo(), data[found.start() :]
        self._undo.feed(data)

    def _restore_screen(self) -> None:
        """Leave the alternate screen if the command did not: it covers the hint and every later note."""
        if self._undo is None or not self._undo.alternate:
            return
        fd = 1 if is_terminal(1) else 2
        try:
            write(fd, self._undo.undo_all(columns(fd) or 80))
        except OSError:
            pass  # the terminal was closed

    def _report_missing(self) -> int:
        """Report output that could not be shown; 0 if nothing is missing."""
        if not self._missing:
            return 0
        below(missing_output(self._missing))
        return OWN_FAILURE

    # Signals.

    def _listen(self) -> None:
        for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGHUP):
            # Signals that our caller ignores (nohup, a background job) stay ignored.
            if signal.getsignal(number) != signal.SIG_IGN:
                signal.signal(number, self._on_signal)

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        if number == signal.SIGINT:
            self._interrupts += 1
        if self._session is None:
            # A start is short: act on it when there is a session.
            if self._interrupts > 1:
                raise KeyboardInterrupt
            self._early.append(number)
            return
        if number in (signal.SIGTERM, signal.SIGHUP) or self._interrupts > 1:
            raise _Leave(number)
        self._pass_on(self._session.id, signal.Signals(number).name.removeprefix("SIG"))

    def _pass_on(self, id: str, name: str) -> None:
        """Send it to the process group, as a terminal does."""
        from ..errors import HoldfastError
        from ..sessions.driver import drive

        try:
            drive(self._core.request(id, "send_signal", signal=name, target="group"))
        except HoldfastError:
            return  # it has ended, or its runner does not answer: following the output shows which
        again = "ends it" if self._lifetime == "call" else "leaves it running"
        below(f"sent {name} to {id}; Ctrl-C {'again ' if name == 'INT' else 'twice '}{again}")

    def _leave(self, number: int, *, ends: bool) -> int:
        """Stop the command if it must not outlive us; else say how to find it."""
        from ..sessions.act import stop
        from ..sessions.driver import drive

        assert self._session is not None
        for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            # A second signal ends us at once: the runner finishes the stop.
            signal.signal(each, signal.SIG_DFL)
        id = self._session.id
        if ends:
            below(f"ending {id} with everything it started")
            stopped = drive(stop(self._core, id, grace=None))
            left = len(stopped.survivors) + stopped.survivors_more
            note(f"{id} has ended" if not left else f"{id}: {left} processes survived, see `hold status {id}`")
        else:
            below(f"{id} is still running: `hold logs -f {id}` watches it, `hold stop {id}` ends it")
        return 128 + number

    # The end.

    def _stay_behind(self, session: Session) -> int:
        if self._quiet:
            say_json(session.refresh())
            return 0
        if self._last_byte != b"\n":
            write(1, b"\n")
        say(session.id)
        note(f"still running: `hold logs -f {session.id}` watches it, `hold stop {session.id}` ends it")
        return 0

    def _ended(self, session: Session) -> int:
        from ..errors import RunnerGone
        from .logs import exit_code

        if self._quiet:
            say_json(session)
        if session.state == "lost" or session.exit is None:
            raise RunnerGone(session.id, session.state, session.pid)
        exit = session.exit
        if exit.cause not in ("exit", "signal"):
            note(f"{session.id} {self._why_ended(session.id, exit)}")
        if exit.survivors and not session.stopping:
            left = len(exit.survivors) + exit.survivors_more
            it = "it" if left == 1 else "them"
            processes = (
                "a process it started is still running"
                if left == 1
                else f"{left} processes it started are still running"
            )
            note(f"{processes}: `hold status {session.id}` lists {it}, `hold stop {session.id}` ends {it}")
        return TIMED_OUT if exit.cause == "overall_timeout" else exit_code(exit)

    def _why_ended(self, id: str, exit: Exit) -> str:
        from ..core.ending import LIMIT_OF_CAUSE
        from ..errors import HoldfastError
        from ..sessions.observe import read_files
        from ..signals.wording import limit_words, spell
        from .output import span

        if exit.cause == "stop":
            return f"was stopped by {exit.by}" if exit.by else "was stopped"
        option = LIMIT_OF_CAUSE.get(exit.cause, "")
        try:
            limit_s = read_files(self._core.home, id).current().get(option)
        except HoldfastError:
            limit_s = None  # it was just removed
        length = "" if limit_s is None else span(limit_s) if limit_s < 1 else spell(limit_s)
        return f"{limit_words(exit.cause, length) or exit.cause.replace('_', ' ')} and was stopped"


def missing_output(missing: dict[str, int]) -> str:
    """How many bytes of output are missing, by reason."""
    total = sum(missing.values())
    why = ", ".join(f"{count} {_WHY_MISSING.get(reason, reason)}" for reason, count in missing.items())
    return f"{total} {'byte' if total == 1 else 'bytes'} of output {'is' if total == 1 else 'are'} missing: {why}"
