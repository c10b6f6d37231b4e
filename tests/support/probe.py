"""One child program for the whole suite: prints `ready`, then does as its words say, one after the other.
First words about signals are done before `ready`.

Output      lines N [SECONDS]     `line 1` to `line N`, SECONDS apart; lines-forever SECONDS
            held-lines N SECONDS FIFO  the same, but `line N` only after one byte of a Gate
            say TEXT              with a newline; write TEXT and hex DIGITS: exact bytes
            bytes N SEED          what random_bytes(N, SEED) yields; fill N: N times `x`
            out, err              where the following words write; close 1 2: close these descriptors
Input       cat, count-stdin      copy stdin, or print `stdin N` at its end; read-line: print `got LINE`
Time        sleep SECONDS, forever, spin SECONDS (burns the processor)
End         exit N, die SIGNAL, halt (SIGSTOP to itself)
Signals     ignore TERM,INT       exit-on TERM N; signal-report: print `signal TERM` for each, and go on
Processes   fork [{ WORDS }]      a child does the group, the parent goes on; bare: the child goes on with the
                                  rest, the parent waits for it
            daemon [{ WORDS }]    double fork and setsid; bare: the daemon goes on, the first process exits 0
            setsid, setpgid, setuid UID, rename TEXT
            hold-pipe [SECONDS]   a child keeps the streams open
            hop SECONDS [PERIOD]  (or spin-fork) fork, setsid, exit of the parent: a new pid each PERIOD
            refork N [SECONDS]    N pairs that re-fork each other on death, for at most SECONDS
            alloc MB              touch and keep that much memory
Meeting     await FIFO            wait for one byte of a Gate; tell FIFO TEXT: a line to a Gate
            touch FILE, append FILE TEXT
            serve PORT            on 127.0.0.1; prints `port N`, answers each connection with `ok`
Facts       print-env NAME, print-limit NAME, print-fds, print-cwd, print-ids, print-umask, print-signals,
            print-argv
Grammar     repeat N { WORDS }; quiet, as the first word: no `ready`
"""

from __future__ import annotations

import os
import select
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal
    from collections.abc import Callable, Iterator
else:
    # Most tests start a probe: the enums of the module in front of it take longer to load than this one.
    import _signal as signal

_CHUNK = 65536
_DEFAULT_HOLD_S = 600.0
_DEFAULT_HOP_PERIOD_S = 0.001
_DEFAULT_REFORK_S = 20.0
# A pair of `refork` gives up after so many deaths, whatever the clock says.
_MOST_REBIRTHS = 200

_PROGRAM = os.path.join(os.path.dirname(os.path.abspath(__file__)), "child", "probe.py")

Words = list[str]
_kept: list[bytearray] = []
_out = 1


def argv(*words: object) -> list[str]:
    """The command line of a probe."""
    return [sys.executable, "-I", "-S", _PROGRAM, *map(str, words)]


def random_bytes(count: int, seed: int) -> Iterator[bytes]:
    """What `bytes COUNT SEED` prints, in chunks."""
    import random

    source = random.Random(seed)
    while count > 0:
        size = min(count, _CHUNK)
        yield source.randbytes(size)
        count -= size


def put(data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(_out, view) :]


def say(text: str) -> None:
    put(text.encode(errors="surrogateescape") + b"\n")


def rest(seconds: float | None) -> None:
    """Pace this program; signal handlers run meanwhile."""
    if seconds is None:
        while True:
            signal.pause()
    select.select([], [], [], seconds)


def perform(words: Words) -> None:
    """Do the words in order; returns when there are none left."""
    words = list(words)
    while words:
        word = words.pop(0)
        act = WORDS.get(word)
        if act is None:
            raise SystemExit(f"probe: unknown word {word!r}")
        act(words)


def number(words: Words, default: float) -> float:
    if words and words[0].replace(".", "", 1).isdigit():
        return float(words.pop(0))
    return default


def group(words: Words) -> Words | None:
    """The words between braces, taken off the list; None when no brace opens here."""
    if not words or words[0] != "{":
        return None
    depth = 0
    for index, word in enumerate(words):
        depth += {"{": 1, "}": -1}.get(word, 0)
        if depth == 0:
            inner = words[1:index]
            del words[: index + 1]
            return inner
    raise SystemExit("probe: a brace is not closed")


def branch(words: Words) -> int:
    """Fork; the child does the group and exits. Returns the child's pid."""
    inner = group(words) or []
    pid = os.fork()
    if pid == 0:
        perform(inner)
        os._exit(0)
    return pid


def do_lines(words: Words) -> None:
    count = int(words.pop(0))
    interval = number(words, 0.0)
    for n in range(1, count + 1):
        say(f"line {n}")
        if interval:
            rest(interval)


def do_held_lines(words: Words) -> None:
    count = int(words[0])
    do_lines([str(count - 1), *words[1:2]])
    del words[:2]
    do_await(words)
    say(f"line {count}")


def do_lines_forever(words: Words) -> None:
    interval = float(words.pop(0))
    n = 0
    while True:
        n += 1
        say(f"line {n}")
        if interval:
            rest(interval)


def do_bytes(words: Words) -> None:
    for chunk in random_bytes(int(words.pop(0)), int(words.pop(0))):
        put(chunk)


def do_fill(words: Words) -> None:
    left = int(words.pop(0))
    block = b"x" * _CHUNK
    while left > 0:
        put(block[:left])
        left -= _CHUNK


def do_stream(fd: int) -> Callable[[Words], None]:
    def switch(_: Words) -> None:
        global _out
        _out = fd

    return switch


def do_spin(words: Words) -> None:
    end = time.monotonic() + float(words.pop(0))
    while time.monotonic() < end:
        pass


def signals(text: str) -> list[int]:
    return [int(getattr(signal, f"SIG{name}")) for name in text.split(",")]


def name_of(number: int) -> str:
    """Without the SIG; of two names the usual one, which comes first: CHLD and not CLD."""
    names = (name for name in sorted(dir(signal)) if name.startswith("SIG") and name[3] != "_")
    return next(name for name in names if getattr(signal, name) == number).removeprefix("SIG")


def do_ignore(words: Words) -> None:
    for one in signals(words.pop(0)):
        signal.signal(one, signal.SIG_IGN)


def do_exit_on(words: Words) -> None:
    names, code = words.pop(0), int(words.pop(0))
    for one in signals(names):
        signal.signal(one, lambda *_: os._exit(code))


def do_signal_report(_: Words) -> None:
    for one in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP, signal.SIGCHLD}:
        signal.signal(one, lambda received, _: say("signal " + name_of(received)))


def do_die(words: Words) -> None:
    one = signals(words.pop(0))[0]
    if one not in {signal.SIGKILL, signal.SIGSTOP}:
        signal.signal(one, signal.SIG_DFL)
    os.kill(os.getpid(), one)


def do_fork(words: Words) -> None:
    if words and words[0] == "{":
        branch(words)
        return
    pid = os.fork()
    if pid:
        _, status = os.waitpid(pid, 0)
        os._exit(os.waitstatus_to_exitcode(status) & 255)


def do_daemon(words: Words) -> None:
    inner = group(words)
    first = os.fork()
    if first:
        os.waitpid(first, 0)
        if inner is None:
            os._exit(0)
        return
    os.setsid()
    if os.fork():
        os._exit(0)
    if inner is not None:
        perform(inner)
        os._exit(0)


def do_close(words: Words) -> None:
    while words and words[0].isdigit():
        os.close(int(words.pop(0)))


def do_hold_pipe(words: Words) -> None:
    seconds = number(words, _DEFAULT_HOLD_S)
    branch(["{", "sleep", str(seconds), "}"])


def do_hop(words: Words) -> None:
    end = time.monotonic() + float(words.pop(0))
    period = number(words, _DEFAULT_HOP_PERIOD_S)
    while time.monotonic() < end:
        if os.fork():
            os._exit(0)
        os.setsid()
        rest(period)


def do_refork(words: Words) -> None:
    count = int(words.pop(0))
    end = time.monotonic() + number(words, _DEFAULT_REFORK_S)
    for _ in range(count):
        if os.fork() == 0:
            refork_until(end)
    say(f"reforking {count}")


def refork_until(end: float) -> None:
    """Be one half of a pair: whichever half dies, the other makes a new one. Never returns."""
    for _ in range(_MOST_REBIRTHS):
        # A pipe for each direction; the half that dies closes its write end, and the other wakes.
        ours, theirs = os.pipe(), os.pipe()
        child = os.fork()
        watched, kept = (ours, theirs) if child else (theirs, ours)
        os.close(watched[1])
        os.close(kept[0])
        dead = select.select([watched[0]], [], [], max(0.0, end - time.monotonic()))[0]
        os.close(watched[0])
        os.close(kept[1])
        if child and dead:
            os.waitpid(child, 0)
        if not dead:
            break
    os._exit(0)


def do_alloc(words: Words) -> None:
    megabytes = int(words.pop(0))
    _kept.append(bytearray(b"\1") * (megabytes << 20))
    say(f"allocated {megabytes}")


def do_serve(words: Words) -> None:
    import socket

    with socket.create_server(("127.0.0.1", int(words.pop(0)))) as server:
        say(f"port {server.getsockname()[1]}")
        while True:
            peer, _ = server.accept()
            with peer:
                peer.sendall(b"ok\n")


def do_cat(_: Words) -> None:
    while data := os.read(0, _CHUNK):
        put(data)


def do_count_stdin(_: Words) -> None:
    total = 0
    while data := os.read(0, _CHUNK):
        total += len(data)
    say(f"stdin {total}")


def do_read_line(_: Words) -> None:
    line = b""
    while not line.endswith(b"\n") and (byte := os.read(0, 1)):
        line += byte
    put(b"got " + line.rstrip(b"\n") + b"\n")


def do_await(words: Words) -> None:
    fd = os.open(words.pop(0), os.O_RDONLY)
    os.read(fd, 1)
    os.close(fd)


def do_append(words: Words) -> None:
    path, text = words.pop(0), words.pop(0)
    fd = os.open(path, os.O_WRONLY | os.O_APPEND | (0 if os.path.exists(path) else os.O_CREAT), 0o600)
    os.write(fd, text.encode() + b"\n")
    os.close(fd)


def do_rename(words: Words) -> None:
    import ctypes

    set_name = 15  # PR_SET_NAME
    ctypes.CDLL(None).prctl(set_name, words.pop(0).encode(), 0, 0, 0)


def do_print_env(words: Words) -> None:
    name = words.pop(0)
    value = os.environ.get(name)
    say(f"{name} unset" if value is None else f"{name}={value}")


def do_print_fds(_: Words) -> None:
    listing = os.open("/proc/self/fd", os.O_RDONLY | os.O_DIRECTORY)
    names = sorted(int(name) for name in os.listdir(listing))
    open_now = [fd for fd in names if fd != listing and os.path.lexists(f"/proc/self/fd/{fd}")]
    os.close(listing)
    say("fds " + " ".join(map(str, open_now)))


def do_print_signals(_: Words) -> None:
    with open("/proc/self/status", encoding="ascii") as status:
        for line in status:
            if line.startswith(("SigBlk", "SigIgn")):
                say(" ".join(line.split()))


def do_print_umask(_: Words) -> None:
    mask = os.umask(0)
    os.umask(mask)
    say(f"umask {mask:04o}")


def do_print_limit(words: Words) -> None:
    import resource

    name = words.pop(0)
    soft, hard = resource.getrlimit(getattr(resource, f"RLIMIT_{name}"))
    say(f"limit {name} {soft} {hard}")


def do_repeat(words: Words) -> None:
    count = int(words.pop(0))
    inner = group(words) or []
    for _ in range(count):
        perform(inner)


WORDS: dict[str, Callable[[Words], object]] = {
    "lines": do_lines,
    "lines-forever": do_lines_forever,
    "held-lines": do_held_lines,
    "say": lambda words: say(words.pop(0)),
    "write": lambda words: put(words.pop(0).encode(errors="surrogateescape")),
    "hex": lambda words: put(bytes.fromhex(words.pop(0))),
    "bytes": do_bytes,
    "fill": do_fill,
    "out": do_stream(1),
    "err": do_stream(2),
    "sleep": lambda words: rest(float(words.pop(0))),
    "forever": lambda _: rest(None),
    "spin": do_spin,
    "exit": lambda words: os._exit(int(words.pop(0))),
    "die": do_die,
    "halt": lambda _: os.kill(os.getpid(), signal.SIGSTOP),
    "ignore": do_ignore,
    "exit-on": do_exit_on,
    "signal-report": do_signal_report,
    "fork": do_fork,
    "daemon": do_daemon,
    "setsid": lambda _: os.setsid(),
    "setpgid": lambda _: os.setpgid(0, 0),
    "setuid": lambda words: os.setuid(int(words.pop(0))),
    "close": do_close,
    "hold-pipe": do_hold_pipe,
    "hop": do_hop,
    "spin-fork": do_hop,
    "refork": do_refork,
    "alloc": do_alloc,
    "serve": do_serve,
    "cat": do_cat,
    "count-stdin": do_count_stdin,
    "read-line": do_read_line,
    "await": do_await,
    "tell": do_append,
    "append": do_append,
    "touch": lambda words: os.close(os.open(words.pop(0), os.O_WRONLY | os.O_CREAT, 0o600)),
    "rename": do_rename,
    "print-env": do_print_env,
    "print-fds": do_print_fds,
    "print-cwd": lambda _: say("cwd " + os.getcwd()),
    "print-ids": lambda _: say(f"pid {os.getpid()} ppid {os.getppid()} pgid {os.getpgrp()} sid {os.getsid(0)}"),
    "print-umask": do_print_umask,
    "print-signals": do_print_signals,
    "print-argv": lambda _: say("argv " + " ".join(sys.argv[1:])),
    "print-limit": do_print_limit,
    "repeat": do_repeat,
}


def main(words: Words) -> None:
    words = list(words)
    if words[:1] == ["quiet"]:
        words.pop(0)
    else:
        # A test that has seen `ready` may send signals.
        while words and words[0] in ("ignore", "exit-on", "signal-report"):
            WORDS[words.pop(0)](words)
        say("ready")
    perform(words)


if __name__ == "__main__":
    main(sys.argv[1:])
