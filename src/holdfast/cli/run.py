"""Run a command as if it were typed alone: its output as it comes, its exit code (128+n for signal n) as ours. We exit
with 127 if there is no such command, 126 if it cannot be executed, 124 if its --timeout ended it, 125 if we failed.

Its log is kept, and it does not die with us. Ctrl-C is passed on to it; a second Ctrl-C leaves it running. When
`hold run` is ended, or its terminal closed, the session goes on, unless --lifetime call ties it to us.
With --tty in a terminal, the command gets one of its own and we are attached to it, as `hold attach` is.
With --wait, a command that is still running then is left running: its id is printed, and we exit with 0.
"""

from __future__ import annotations

import errno
import signal
import time

from ..errors import TIMED_OUT
from ..errors import USAGE as USAGE_ERROR
from .door import core as open_core
from .options import COMMAND_HELP, add_start_options, requested, tell_notes
from .output import is_terminal, note, say, say_json, write
from .parsing import Parser, add_json, duration
from .pump import pour_beside

TYPE_CHECKING = False
if TYPE_CHECKING:
    from argparse import Namespace
    from types import FrameType

    from ..host.api import Session
    from ..host.connection import Connection
    from ..host.core import Core
    from ..host.log import Page
    from ..host.request import Command
    from ..model import Exit, StartOptions
    from .pump import Source

USAGE = "[--wait T] [OPTION...] -- CMD..."
EXAMPLES = """
hold run -- pytest -q
hold run --wait 10s -- make              10 seconds of output; then it goes on in the background
hold run --stdin open -- sort < names
hold run --lifetime call -- ./server     ends with us, whatever happens
"""

# As `timeout`, `env` and `docker run` say that they failed themselves, and not the command.
OWN_FAILURE = 125
NOT_EXECUTABLE, NOT_FOUND = 126, 127
_WHY_MISSING = {
    "disk": "not stored (disk full)",
    "dropped": "deleted from the log (its cap)",
    "missing": "in removed log files",
    "unreadable": "in log files that cannot be read",
}
_OUR_OUTPUT = {"stdout": 1, "stderr": 2, "tty": 1}


def arrange(parser: Parser) -> None:
    parser.description = f"{__doc__}\n{COMMAND_HELP}"
    parser.add_argument("--wait", type=duration("--wait"), metavar="T", help="stay at most this long")
    add_json(parser, "nothing but the session, when it has ended or --wait is over,")
    add_start_options(parser)


def main(args: Namespace) -> int:
    from ..errors import HoldfastError

    try:
        return _run(args, *requested(args, "hold run"))
    except (HoldfastError, OSError) as problem:
        if getattr(problem, "exit_code", None) != USAGE_ERROR:
            problem.exit_code = _failed_with(problem)  # type: ignore[union-attr]
        raise


def _failed_with(problem: Exception) -> int:
    """What a shell has for a command that is not there or cannot be executed; else it is us who failed."""
    from ..errors import SpawnError

    if isinstance(problem, SpawnError) and problem.step in ("exec", "interpreter"):
        return NOT_FOUND if problem.errno == errno.ENOENT else NOT_EXECUTABLE
    return OWN_FAILURE


def _run(args: Namespace, command: Command, options: StartOptions) -> int:
    rest: Source | None = getattr(args, "rest", None)
    if args.notify_people:
        # With `auto` an end that we show ourselves is told to nobody else.
        options.setdefault("notify", "exit")
    core = open_core(need_config=True)
    try:
        if (
            rest is None
            and options.get("tty")
            and args.wait is None
            and not args.json
            and is_terminal(0)
            and is_terminal(1)
        ):
            return _attached(core, command, options, clipboard=args.clipboard)
        run = _Run(core, options.get("lifetime", "detached"), quiet=args.json)
        return run.live(command, options, args.wait, rest)
    finally:
        core.close()


def _attached(core: Core, command: Command, options: StartOptions, *, clipboard: bool) -> int:
    """On a terminal of its own, as large as ours, with us at it from the beginning. The detach key leaves it there."""
    from ..host.api import Session
    from ..host.driver import drive
    from ..host.verbs import exit_wait
    from ..terminal.detach import detach_key
    from .attach import Wishes
    from .client import Client
    from .ownterminal import OwnTerminal

    key = detach_key(core.config.terminal_detach_key)
    own = OwnTerminal(0, 1)
    size = own.size()
    own.close()
    if size is not None:
        options.setdefault("size", size)
    options.setdefault("notify", "auto")
    seen, connection = drive(core.start(command, options, then=exit_wait(options, None), hold=True))
    try:
        history_rows = core.config.terminal_history_rows
        wishes = Wishes(since="start", key=key, history_rows=history_rows, clipboard=clipboard, hold=True)
        session = Session(core, seen.snapshot())
        tell_notes(session)
        client = Client(session, wishes)
        code = client.run()
        if session.refresh().exit is not None:
            _confirm(core, connection)
        if client.missing:
            note(missing_output(client.missing))
            return OWN_FAILURE
        timed_out = session.exit is not None and session.exit.cause == "overall_timeout"
        return TIMED_OUT if timed_out else code
    finally:
        if connection is not None:
            connection.close()


def _confirm(core: Core, connection: Connection | None) -> None:
    """The ending was told here: it need not be told to the owner again."""
    from ..errors import HoldfastError
    from ..host.driver import drive

    if connection is not None:
        try:
            reply_s = core.config.hosts_reply_timeout
            drive(connection.told_end(0.0, reply_s, late_s=reply_s))
        except HoldfastError:
            pass


class _Leave(Exception):
    """We are told to go, by a signal, or because nobody reads our output any more."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


class _Run:
    def __init__(self, core: Core, lifetime: str, *, quiet: bool) -> None:
        self._core = core
        self._lifetime = lifetime
        self._quiet = quiet
        self._session: Session | None = None
        self._connection: Connection | None = None
        self._interrupts = 0
        self._early: list[int] = []
        self._last_byte = b"\n"
        # Bytes of output that could not be read, and why.
        self._missing: dict[str, int] = {}

    def live(self, command: Command, options: StartOptions, wait: float | None, rest: Source | None) -> int:
        from ..host.api import Session
        from ..host.driver import drive
        from ..host.verbs import collect_when_due, exit_wait

        # An ending that we tell ourselves need not be told to the owner again.
        options.setdefault("notify", "auto")
        self._listen()
        until = None if wait is None else time.monotonic() + wait
        asked = exit_wait(options, None)
        seen, self._connection = drive(self._core.start(command, options, then=asked, hold=not self._quiet))
        self._session = session = Session(self._core, seen.snapshot())
        tell_notes(session)
        try:
            self._interrupts = 0
            for number in self._early:
                self._on_signal(number, None)
            collect_when_due(self._core)
            if rest is not None or options.get("stdin") == "open":
                pour_beside(self._core, session.id, rest, close=not options.get("tty"))
            self._stream(until, seen.files.spec["log_cap"])
            session.refresh()
        except _Leave as leave:
            return self._leave(leave.number)
        if session.exit is None and session.state != "lost":
            return self._report_missing() or self._stay_behind(session)
        _confirm(self._core, self._connection)
        code = self._ended(session)
        return self._report_missing() or code

    def _stream(self, until: float | None, cap: int) -> None:
        """Show what comes until the command has ended, or it is time to go. The command waits for us rather than that
        the log's cap cuts what we have not shown."""
        from ..errors import HoldfastError
        from ..host.driver import drive
        from ..host.log import parse_cursor
        from ..host.segments import STREAMS
        from ..host.waiting import follow

        assert self._session is not None
        if self._quiet:
            limit = None if until is None else max(0.0, until - time.monotonic())
            self._session.wait(exit=True, timeout=limit)
            return
        pages = follow(self._core, self._session.id, None, None, until=until)
        while True:
            try:
                page: Page = drive(pages.__anext__())  # type: ignore[arg-type]
            except StopAsyncIteration:
                return
            for stream, _, data in page.chunks:
                try:
                    write(_OUR_OUTPUT[stream], data)
                except OSError as problem:
                    # A reader that left, or a terminal that was closed.
                    raise _Leave(signal.SIGPIPE if isinstance(problem, BrokenPipeError) else signal.SIGHUP) from None
                if stream != "stderr":
                    self._last_byte = data[-1:]
            for gap in page.gaps:
                self._missing[gap.reason] = self._missing.get(gap.reason, 0) + gap.stop - gap.start
            read = parse_cursor(page.cursor, STREAMS)
            # A log that is far from its cap cuts nothing: most commands need not be told about.
            if self._connection is not None and sum(read.values()) > cap // 4:
                try:
                    drive(self._connection.has_read(read, self._core.config.hosts_reply_timeout))
                except HoldfastError:
                    pass  # its runner left, or is gone: what it wrote is read all the same

    def _report_missing(self) -> int:
        """Say how much of the output is not in what we wrote; 0 when nothing is missing."""
        if not self._missing:
            return 0
        _below(missing_output(self._missing))
        return OWN_FAILURE

    def _listen(self) -> None:
        for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGHUP):
            # What our caller ignores (nohup, a job in the background) stays ignored.
            if signal.getsignal(number) != signal.SIG_IGN:
                signal.signal(number, self._on_signal)

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        if number == signal.SIGINT:
            self._interrupts += 1
        if self._session is None:
            # A start is short and has a bound: what is asked for meanwhile is done when there is a session.
            if self._interrupts > 1:
                raise KeyboardInterrupt
            self._early.append(number)
            return
        if number in (signal.SIGTERM, signal.SIGHUP) or self._interrupts > 1:
            raise _Leave(number)
        self._pass_on(signal.Signals(number).name.removeprefix("SIG"))

    def _pass_on(self, name: str) -> None:
        """To the whole group, as a terminal does."""
        from ..errors import HoldfastError
        from ..host.driver import drive

        assert self._session is not None
        try:
            drive(self._core.request(self._session.id, "send_signal", signal=name, target="group"))
        except HoldfastError:
            return  # it just ended, or nobody answers: whoever follows it sees
        again = "ends it" if self._lifetime == "call" else "leaves it running"
        _below(f"sent {name} to {self._session.id}; Ctrl-C {'again ' if name == 'INT' else 'twice '}{again}")

    def _leave(self, number: int) -> int:
        """End it with its tree if it lives only for us; else say where it is found."""
        from ..host.driver import drive

        assert self._session is not None
        for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            # A second one need not be polite: the runner finishes the job.
            signal.signal(each, signal.SIG_DFL)
        id = self._session.id
        if self._lifetime == "call" and self._connection is not None:
            _below(f"ending {id} with everything it started")
            stopped = drive(self._core.stop(id, grace=None))
            left = len(stopped.survivors) + stopped.survivors_more
            note(f"{id} has ended" if not left else f"{id}: {left} processes survived, see `hold status {id}`")
        else:
            _below(f"{id} is still running: `hold logs -f {id}` watches it, `hold stop {id}` ends it")
        if self._connection is not None:
            self._connection.close()
        return 128 + number

    def _stay_behind(self, session: Session) -> int:
        from ..host.driver import drive
        from ..host.verbs import let_go

        if self._connection is not None and self._lifetime == "call":
            drive(let_go(self._connection))
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
        from .wait import exit_code

        if self._quiet:
            say_json(session)
        if session.state == "lost" or session.exit is None:
            raise RunnerGone(session.id, session.state, session.pid)
        exit = session.exit
        if exit.cause not in ("exit", "signal"):
            note(f"{session.id} {self._why_ended(session.id, exit)}")
        if exit.survivors and not session.stopping:
            left = len(exit.survivors) + exit.survivors_more
            processes = "a process it started lives on" if left == 1 else f"{left} processes it started live on"
            note(f"{processes}: `hold status {session.id}` lists, `hold stop {session.id}` ends")
        return TIMED_OUT if exit.cause == "overall_timeout" else exit_code(exit)

    def _why_ended(self, id: str, exit: Exit) -> str:
        from ..errors import HoldfastError
        from ..host.observe import read_files
        from ..runner.deadlines import CAUSES
        from ..signals.words import spell
        from .tables import span

        option = next((option for option, cause in CAUSES.items() if cause == exit.cause), None)
        try:
            seconds = None if option is None else read_files(self._core.home, id).now().get(option)
        except HoldfastError:
            seconds = None  # it was removed meanwhile
        length = "its limit" if seconds is None else span(seconds) if seconds < 1 else spell(seconds)
        if exit.cause == "stop":
            return f"was stopped by {exit.by}" if exit.by else "was stopped"
        return {
            "overall_timeout": f"timed out after {length} and was stopped",
            "idle_timeout": f"printed nothing for {length} and was stopped (idle timeout)",
            "ttl": f"reached its time to live of {length} and was stopped",
            "owner_gone": "was stopped: the process that owned it is gone",
            "out_of_memory": "ran out of memory and was killed",
        }.get(exit.cause, f"was ended: {exit.cause.replace('_', ' ')}")


def missing_output(missing: dict[str, int]) -> str:
    """How many bytes of output were not written, by the reason of each gap."""
    total = sum(missing.values())
    why = ", ".join(f"{count} {_WHY_MISSING.get(reason, reason)}" for reason, count in missing.items())
    return f"{total} {'byte' if total == 1 else 'bytes'} of output {'is' if total == 1 else 'are'} missing: {why}"


def _below(text: str) -> None:
    """A note on a line of its own: a terminal has just written `^C`, or half a line of output."""
    note(text, head="\nhold" if is_terminal(2) else "hold")
