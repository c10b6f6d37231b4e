"""`python bench/soak.py [--minutes 30] [--seed N]`: weeks of trouble in half an hour, checked throughout.

Fifty sessions over pipes and terminals print numbered lines of one width, so the number of a line follows from its
offset: a missing or doubled byte shows at once. Hosts start, follow, list, stop and remove sessions and read signals.
Meanwhile hosts, launchers and runners are killed and stopped at random, the disk of the home fills and empties, and
the index is deleted. What hosts and commands did is appended to a ledger on another disk, and compared with the home.

Each violation is printed with its time; the exit code is 1 when there was one. The hosts of this file are real ones:
processes of their own that use the public API and the command line.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from statistics import median

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from holdfast import Holdfast, Session

SESSIONS = 50
ELDERS = 10
OWNERS = [f"agent-{n}" for n in range(5)]
ROLES = ("starter", "starter", "follower", "follower", "lister", "lister", "reader", "churner", "stopper", "remover")
LINE_BYTES = 64
# The code of a printer whose output was closed under it: its runner was killed.
BROKEN = 99
DISK_BYTES = 112 << 20
SETTINGS = {
    "HOLDFAST_LOG_SESSION_CAP": "1MiB",
    "HOLDFAST_LOG_SEGMENT": "128KiB",
    "HOLDFAST_LOG_FREE_FLOOR": "0",
    "HOLDFAST_LAUNCHER_IDLE": "20s",
    "HOLDFAST_SIGNALS_RELEASE_WAITS": "1s",
    # Readers are killed all the time here: no signal shall be given up for that.
    "HOLDFAST_SIGNALS_PARK_AFTER": "100000",
    "HOLDFAST_SIGNALS_ALONE_AFTER": "100000",
}
# The directory of this soak, for its hosts and commands.
MARK = "HOLDFAST_SOAK_DIRECTORY"
CHECK_EVERY_S = 60.0
# A deleted index takes acknowledgements with it, also those of hosts that still had it open.
INDEX_SLACK_S = 10.0
# Buffers of what just happened; a leak of one line in a thousand is more than this in half an hour.
MEMORY_SLACK_KB = 256
MEMORY_SAMPLES = 3
CLOSING_S = 60.0


class Ledger:
    """Lines that hosts and commands append, on a disk that never fills."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._read = 0

    def write(self, what: str, **facts: object) -> None:
        """One line in one write, so that a kill leaves only whole lines."""
        line = json.dumps({"t": time.monotonic(), "what": what, **facts}).encode() + b"\n"
        file = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            os.write(file, line)
        finally:
            os.close(file)

    def news(self) -> Iterator[dict[str, Any]]:
        """What was appended since the last call."""
        with open(self.path, "rb") as file:
            file.seek(self._read)
            for line in file:
                self._read += len(line)
                yield json.loads(line)


# The command of a session.


def printer(ledger: Ledger, token: str, seed: int, lifetime_s: float) -> None:
    """Print numbered lines in bursts, then exit with a code that the ledger knows first."""
    import termios

    dice = random.Random(seed)
    until = time.monotonic() + lifetime_s
    # A stop types ^C on a terminal: nothing but numbered lines shall come of it.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    if os.isatty(1):
        modes = termios.tcgetattr(1)
        modes[3] &= ~termios.ECHO
        termios.tcsetattr(1, termios.TCSANOW, modes)
    number = 0
    try:
        while time.monotonic() < until:
            count = dice.choice((1, 3, 20, 150))
            burst = b"".join(b"%015d%s\n" % (n, b"." * (LINE_BYTES - 16)) for n in range(number, number + count))
            number += count
            while burst:
                burst = burst[os.write(1, burst) :]
            time.sleep(dice.random() * 0.8)
    except OSError:
        ledger.write("exits", token=token, code=BROKEN, lines=None)
        os._exit(BROKEN)
    ledger.write("exits", token=token, code=seed % 4, lines=number)
    os._exit(seed % 4)


def wrong_lines(chunks: list[tuple[str, int, bytes]]) -> str | None:
    """The first line that does not stand where its number belongs."""
    for stream, offset, data in chunks:
        width = LINE_BYTES + (stream == "tty")
        for at in range(-offset % width, len(data) - width + 1, width):
            line = data[at : at + width]
            if line[:15] != b"%015d" % ((offset + at) // width) or line[-1:] != b"\n":
                return f"{stream} at byte {offset + at}: {line!r}"
    return None


# Hosts: each does one thing until it is killed.


class Host:
    def __init__(self, role: str, ledger: Ledger, seed: int) -> None:
        import holdfast

        self.role = role
        self.ledger = ledger
        self.dice = random.Random(seed)
        self.hf = holdfast.open(author=f"soak:{role}")
        self.elders: set[str] = set()
        self.checked: set[str] = set()

    def work(self) -> None:
        import traceback

        from holdfast import HoldfastError

        turn = getattr(self, self.role)
        while True:
            try:
                turn()
            except HoldfastError as problem:
                # A list never fails; other calls may be refused while a runner is stopped or the disk is full.
                kind = "violation" if self.role == "lister" else "refused"
                self.ledger.write(kind, text=f"{self.role}: {problem.code}: {problem}", code=problem.code)
                time.sleep(0.2)
            except Exception:  # noqa: BLE001  an untyped error is a finding
                self.ledger.write("violation", text=f"{self.role}: {traceback.format_exc()[-2500:]}")
                time.sleep(0.2)

    def starter(self) -> None:
        live = self.printers()
        if len(live) >= SESSIONS:
            time.sleep(0.3)
            return
        elder = sum(each.labels["elder"] == "yes" for each in live) < ELDERS
        token = f"{self.dice.getrandbits(60):015x}"
        seconds = 1e6 if elder else self.dice.uniform(5, 90)
        seed = self.dice.randrange(1 << 30)
        command = [sys.executable, "-I", "-S", os.path.abspath(__file__), "--printer", token, str(seed), str(seconds)]
        labels = {"token": token, "elder": "yes" if elder else "no"}
        owner = self.dice.choice(OWNERS)
        tty = self.dice.random() < 0.4
        started = self.hf.start(command, tty=tty, owner=owner, notify="exit", labels=labels, key=token)
        self.ledger.write("started", token=token, id=started.id, elder=elder)

    def follower(self) -> None:
        """Each page carries on where the last one ended, over kills and full disks."""
        live = self.printers()
        if not live:
            time.sleep(0.3)
            return
        one = self.dice.choice(live)
        until = time.monotonic() + self.dice.uniform(2, 15)
        cursor: str | None = None
        while time.monotonic() < until:
            page = one.read(cursor)
            if wrong := wrong_lines(page.chunks):
                self.ledger.write("violation", text=f"a follower of {one.id} read {wrong}")
            cursor = page.cursor
            if one.wait(output=True, since=cursor, timeout=2).reason == "exit":
                return

    def lister(self) -> None:
        """A list has every session that was there before it and after it."""
        self._read_ledger()
        before = set(self.elders)
        listed = {each.id for each in self.hf.sessions(all=True)}
        if self.dice.random() < 0.2:
            self.hf.recover()
        if self.dice.random() < 0.1:
            done = subprocess.run(["hold", "ls", "-a", "--json"], capture_output=True, text=True, check=False)
            if done.returncode:
                self.ledger.write("violation", text=f"hold ls: exit {done.returncode}: {done.stderr[-1500:]}")
        self._read_ledger()
        if missing := before & self.elders - listed:
            self.ledger.write("violation", text=f"a list lacks {sorted(missing)}")
        self.ledger.write("listed", count=len(listed))
        time.sleep(0.2)

    def _read_ledger(self) -> None:
        for entry in self.ledger.news():
            if entry["what"] == "started" and entry["elder"]:
                self.elders.add(entry["id"])
            elif entry["what"] == "removing":
                self.elders.discard(entry["id"])

    def reader(self) -> None:
        with self.hf.signals(self.dice.choice(OWNERS)).claim(limit=20) as batch:
            for each in batch:
                self.ledger.write("given", signal=each.id, session=each.session, ends=each.ends_session)
            if batch:
                time.sleep(self.dice.random() * 0.2)
            self.ledger.write("settling", signals=batch.ids)
        self.ledger.write("settled", signals=batch.ids)
        time.sleep(0.3)

    def churner(self) -> None:
        """Short runs and removals beside everybody's lists."""
        code = self.dice.randrange(4)
        done = self.hf.run(f"echo spark; exit {code}", wait=60, labels={"spark": "yes"})
        if done.exit and done.exit.cause == "exit" and done.exit.code != code:
            self.ledger.write("violation", text=f"{done.id} ended with {done.exit.code}, not {code}")
        if done.state == "exited":
            done.remove()
        self.ledger.write("churned")

    def stopper(self) -> None:
        young = [each for each in self.printers() if each.labels["elder"] == "no"]
        if young:
            one = self.dice.choice(young)
            self.ledger.write("stopping", id=one.id)
            one.stop(grace=self.dice.choice((0, 1, 5)))
        time.sleep(self.dice.uniform(0.5, 3))

    def remover(self) -> None:
        """Remove what the checks are done with."""
        for entry in self.ledger.news():
            if entry["what"] == "checked":
                self.checked.add(entry["id"])
            elif entry["what"] == "removed":
                self.checked.discard(entry["id"])
        for id in sorted(self.checked):
            self.ledger.write("removing", id=id)
            remove(self.hf, id)
            self.checked.discard(id)
            self.ledger.write("removed", id=id)
        time.sleep(1)

    def printers(self) -> list[Session]:
        return [each for each in self.hf.sessions() if "token" in each.labels]


def remove(hf: Holdfast, id: str) -> None:
    from holdfast import errors

    with contextlib.suppress(errors.NotFound, errors.Removed):
        hf.get(id).remove()


# The soak itself: trouble, and the checks between.


class Soak:
    def __init__(self, directory: str, seed: int) -> None:
        import holdfast

        self.directory = directory
        self.dice = random.Random(seed)
        self.began = time.monotonic()
        self.ledger = Ledger(os.path.join(directory, "ledger"))
        self.ledger.write("soak", seed=seed)
        self.hf = holdfast.open(author="soak")
        self.hosts: list[tuple[str, subprocess.Popen[bytes]]] = []
        self.stopped: list[tuple[float, int]] = []
        self.full_until = 0.0
        self.violations = 0
        self.counts: Counter[str] = Counter()
        self.refused: Counter[str] = Counter()
        self.deletions: list[float] = []
        self.tokens: dict[str, int] = {}
        self.stops: set[str] = set()
        self.hurt: set[str] = set()
        self.settled: dict[str, float] = {}
        self.announced: set[str] = set()
        self.finished: set[str] = set()
        self.memory: dict[str, list[int]] = {}

    def say(self, text: str) -> None:
        sys.stdout.write(f"{time.monotonic() - self.began:7.1f} s  {text}\n")
        sys.stdout.flush()

    def violation(self, text: str) -> None:
        self.violations += 1
        self.say(f"VIOLATION: {text}")

    def run(self, minutes: float) -> int:
        until = self.began + minutes * 60
        next_check = self.began + CHECK_EVERY_S
        while time.monotonic() < until:
            self.keep_hosts()
            self.trouble()
            time.sleep(self.dice.uniform(0.05, 0.5))
            if time.monotonic() >= next_check:
                self.calm()
                self.check()
                next_check = time.monotonic() + CHECK_EVERY_S
        self.calm()
        self.close()
        for name, count in sorted(self.counts.items()):
            self.say(f"{name}: {count}")
        for code, count in self.refused.most_common():
            self.say(f"refused with {code}: {count}")
        growth = {id: each[-1] - each[0] for id, each in self.memory.items() if len(each) > 1}
        self.say(f"memory of a runner, last minus first sample, in KB: {sorted(growth.values())}")
        self.say(f"{self.violations} violations in {minutes:g} minutes")
        return 1 if self.violations else 0

    # Trouble.

    def keep_hosts(self) -> None:
        alive = []
        for role, process in self.hosts:
            if process.poll() is None:
                alive.append((role, process))
            elif process.returncode >= 0:
                self.violation(f"the host {role} ended by itself with {process.returncode}")
        missing = Counter(ROLES) - Counter(role for role, _ in alive)
        for role in missing.elements():
            argv = [sys.executable, os.path.abspath(__file__), "--host", role, str(self.dice.randrange(1 << 30))]
            alive.append((role, subprocess.Popen(argv)))
            self.counts["hosts started"] += 1
        self.hosts = alive

    def trouble(self) -> None:
        now = time.monotonic()
        for due, pid in list(self.stopped):
            if due <= now:
                self.stopped.remove((due, pid))
                self.send(pid, signal.SIGCONT)
        if self.full_until and self.full_until <= now:
            self.empty_disk()
        what = self.dice.choices(
            ("nothing", "host", "launcher", "runner", "disk", "index"), weights=(20, 10, 4, 6, 1, 0.5)
        )[0]
        hard = self.dice.random() < 0.5
        if what == "host":
            self.hurt_process(self.dice.choice(self.hosts)[1].pid, hard, "host")
        elif what == "launcher" and (launchers := self.launchers()):
            self.hurt_process(self.dice.choice(launchers), hard, "launcher")
        elif what == "runner":
            self.hurt_runner(hard and self.dice.random() < 0.2)
        elif what == "disk" and not self.full_until:
            self.fill_disk()
            self.full_until = now + self.dice.uniform(1, 6)
        elif what == "index":
            self.delete_index()

    def hurt_runner(self, hard: bool) -> None:
        from holdfast import HoldfastError

        try:
            live = [each for each in self.hf.sessions() if each.runner_pid]
        except HoldfastError as problem:
            self.violation(f"a list failed: {problem!r}")
            return
        if not live:
            return
        one = self.dice.choice(live)
        assert one.runner_pid is not None
        if hard:
            self.hurt.add(one.id)
        self.hurt_process(one.runner_pid, hard, "runner")

    def hurt_process(self, pid: int, hard: bool, kind: str) -> None:
        if self.send(pid, signal.SIGKILL if hard else signal.SIGSTOP):
            self.counts[f"{kind}s {'killed' if hard else 'stopped'}"] += 1
            if not hard:
                self.stopped.append((time.monotonic() + self.dice.uniform(0.5, 8), pid))

    def send(self, pid: int, number: int) -> bool:
        """To a process of this soak alone, whoever has the pid now."""
        try:
            handle = os.pidfd_open(pid)
        except OSError:
            return False
        try:
            if pid not in processes():
                return False
            signal.pidfd_send_signal(handle, number)
        except OSError:
            return False
        finally:
            os.close(handle)
        return True

    def launchers(self) -> list[int]:
        """Each has a lock file that names its pid. Spares and runners have its command line too."""
        directory = os.path.join(os.environ["XDG_RUNTIME_DIR"], "holdfast")
        found = []
        for name in os.listdir(directory):
            if name.startswith("launcher-") and name.endswith(".lock"):
                path = os.path.join(directory, name)
                with contextlib.suppress(OSError, ValueError, IndexError), open(path, encoding="ascii") as file:
                    found.append(int(file.read().split()[0]))
        return found

    def fill_disk(self) -> None:
        self.counts["disk filled"] += 1
        with open(os.path.join(self.hf.home.path, "filler"), "wb", buffering=0) as file:
            with contextlib.suppress(OSError):
                while True:
                    file.write(bytes(1 << 20))
            with contextlib.suppress(OSError):
                while True:
                    file.write(bytes(4096))

    def empty_disk(self) -> None:
        self.full_until = 0.0
        os.unlink(os.path.join(self.hf.home.path, "filler"))

    def delete_index(self) -> None:
        self.counts["index deleted"] += 1
        self.deletions.append(time.monotonic())
        for suffix in ("", "-wal", "-shm"):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(os.path.join(self.hf.home.path, f"index.db{suffix}"))

    def calm(self) -> None:
        for _, pid in self.stopped:
            self.send(pid, signal.SIGCONT)
        self.stopped.clear()
        if self.full_until:
            self.empty_disk()
        time.sleep(3)

    # Checks.

    def check(self) -> None:
        running = {token(line): pid for pid, line in processes().items() if "--printer" in line}
        listed = {each.labels["token"]: each for each in self.hf.sessions(all=True) if "token" in each.labels}
        # Only now: whatever ended before the list is in the ledger.
        self.read_ledger()
        for name, pid in running.items():
            one = listed.get(name)
            if (one is None or (one.state in ("exited", "lost") and not survivors(one))) and pid in processes():
                self.violation(f"the process {pid} of {name} runs, and its session is {one!r}")
        for one in listed.values():
            if one.id not in self.finished:
                self.check_session(one)
        for one in self.hf.sessions(all=True):
            if one.labels.get("spark") == "yes" and one.state in ("exited", "lost") and one.exit:
                remove(self.hf, one.id)
        self.say(f"{len(listed)} sessions listed, {len(running)} commands run, {len(self.settled)} signals settled")

    def check_session(self, one: Session) -> None:
        self.check_lines(one)
        if one.state not in ("exited", "lost"):
            if one.labels["elder"] == "yes" and one.runner_pid and one.state == "running":
                self.memory.setdefault(one.id, []).append(anonymous_kb(one.runner_pid))
            return
        self.check_exit(one)
        # A stop by a host of the same home is not announced to the owner; every other end is.
        if one.id in self.announced or one.id in self.stops:
            self.finished.add(one.id)
            self.ledger.write("checked", id=one.id)

    def check_lines(self, one: Session) -> None:
        cursor: str | None = None
        at: dict[str, int] = {}
        while True:
            page = one.read(cursor)
            if wrong := wrong_lines(page.chunks):
                self.violation(f"the log of {one.id} has {wrong}")
            for stream, offset, data in page.chunks:
                declared = page.dropped_before.get(stream, 0)
                gaps = [(gap.start, gap.stop) for gap in page.gaps if gap.stream == stream]
                if offset > at.get(stream, 0) and offset != declared and all(offset != end for _, end in gaps):
                    self.violation(f"{one.id}: {stream} goes on at {offset} after {at.get(stream, 0)}, undeclared")
                at[stream] = offset + len(data)
            cursor = page.cursor
            if not page.more:
                return

    def check_exit(self, one: Session) -> None:
        planned = self.tokens.get(one.labels["token"])
        end = one.exit
        if one.id in self.hurt:
            if end and end.code is not None and planned is not None and end.code != planned:
                self.violation(f"{one.id} ended with {planned}; its record says {end!r}")
        elif end is None:
            self.violation(f"{one.id} is {one.state} without an exit")
        elif one.id in self.stops and end.cause == "stop":
            pass
        elif end.cause != "exit" or end.code != planned or planned == BROKEN:
            self.violation(f"{one.id} ended with {planned}; its record says {end!r}")

    def read_ledger(self) -> None:
        for entry in self.ledger.news():
            what = entry["what"]
            self.counts[what] += 1
            if what == "violation":
                self.violation(entry["text"])
            elif what == "refused":
                self.refused[entry["code"]] += 1
            elif what == "exits":
                self.tokens[entry["token"]] = entry["code"]
            elif what == "stopping":
                self.stops.add(entry["id"])
            elif what == "given":
                self.check_given(entry)
            elif what == "settled":
                self.settled |= dict.fromkeys(entry["signals"], entry["t"])

    def awaits_signals(self) -> bool:
        """Whether an owner still has to read the end of a session. A signal that a reader holds is not pending."""
        self.read_ledger()
        checked = self.finished | self.announced | self.stops
        return any(self.hf.signals(owner).pending() for owner in OWNERS) or any(
            "token" in one.labels and one.id not in checked for one in self.hf.sessions(all=True)
        )

    def check_given(self, entry: dict[str, Any]) -> None:
        before = self.settled.get(entry["signal"])
        if entry["ends"]:
            self.announced.add(entry["session"])
        if before is not None and not any(before - INDEX_SLACK_S < when < entry["t"] for when in self.deletions):
            self.violation(f"the signal {entry['signal']} was given again after it was settled")

    # The end: everything ends, everything was announced, nothing is left.

    def close(self) -> None:
        self.keep_hosts()  # the reader may just have been killed
        for role, process in self.hosts:
            if role != "reader":
                process.kill()
                process.wait()
        live = self.hf.sessions()
        for one in live:
            self.ledger.write("stopping", id=one.id)
        self.hf.stop_all([one.id for one in live], grace=1)
        deadline = time.monotonic() + CLOSING_S
        while time.monotonic() < deadline and self.awaits_signals():
            time.sleep(0.5)
        for _, process in self.hosts:
            process.kill()
            process.wait()
        self.read_ledger()
        for one in self.hf.sessions(all=True):
            if "token" in one.labels and one.id not in self.finished:
                self.check_session(one)
                if one.id not in self.finished:
                    self.violation(f"{one.id} is {one.state} and its owner was never notified")
        for id, samples in self.memory.items():
            # The first samples fill caches: a leak shows as a last third that lies above the middle third.
            third = len(samples) // 3
            if third >= MEMORY_SAMPLES:
                growth = median(samples[-third:]) - median(samples[third:-third])
                if growth > MEMORY_SLACK_KB:
                    self.violation(f"the runner of {id} grows, in KB: {samples}")
        self.hf.close()
        while time.monotonic() < deadline and processes():
            time.sleep(0.5)
        for pid, line in processes().items():
            self.violation(f"left behind: {pid} {line}")
            self.send(pid, signal.SIGKILL)


def processes() -> dict[int, str]:
    """The processes of this soak but its own, with their command lines: those in its mount namespace."""
    namespace = os.readlink("/proc/self/ns/mnt")
    found = {}
    for name in os.listdir("/proc"):
        if not name.isdecimal() or int(name) == os.getpid():
            continue
        with contextlib.suppress(OSError):
            if os.readlink(f"/proc/{name}/ns/mnt") == namespace:
                with open(f"/proc/{name}/cmdline", "rb") as line:
                    found[int(name)] = os.fsdecode(line.read().replace(b"\0", b" "))
    return found


def token(line: str) -> str:
    return line.split("--printer ")[1].split(maxsplit=1)[0]


def survivors(one: Session) -> bool:
    return bool(one.exit and one.exit.survivors)


def anonymous_kb(pid: int) -> int:
    """The memory of a process that no file backs. Pages that it shares with its launcher count as well, so that the
    launcher's death does not look like growth."""
    with contextlib.suppress(OSError), open(f"/proc/{pid}/status", encoding="ascii") as file:
        return next((int(line.split()[1]) for line in file if line.startswith("RssAnon:")), 0)
    return 0


def in_own_world(arguments: list[str]) -> int:
    """Run the soak in a mount namespace of its own, with a small disk for the home."""
    directory = tempfile.mkdtemp(prefix="holdfast-soak-")
    home, runtime = os.path.join(directory, "home"), os.path.join(directory, "run")
    os.mkdir(home)
    os.mkdir(runtime, 0o700)
    environ = {name: value for name, value in os.environ.items() if not name.startswith("HOLDFAST_")}
    environ |= SETTINGS | {MARK: directory, "HOLDFAST_HOME": home, "XDG_RUNTIME_DIR": runtime}
    environ |= {"HOLDFAST_CONFIG": "/dev/null", "PATH": os.path.dirname(sys.executable) + ":" + environ["PATH"]}
    namespaces = ["unshare", "--mount"] if os.geteuid() == 0 else ["unshare", "--user", "--map-root-user", "--mount"]
    script = f'mount -t tmpfs -o size={DISK_BYTES},mode=700 soak "$1" && shift && exec "$@"'
    argv = ["sh", "-c", script, "sh", home, sys.executable, os.path.abspath(__file__), "--inside", *arguments]
    try:
        return subprocess.run([*namespaces, *argv], env=environ, check=False).returncode
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def main(arguments: list[str]) -> int:
    ledger = Ledger(os.path.join(os.environ.get(MARK, ""), "ledger"))
    if arguments[:1] == ["--printer"]:
        printer(ledger, arguments[1], int(arguments[2]), float(arguments[3]))
    if arguments[:1] == ["--host"]:
        Host(arguments[1], ledger, int(arguments[2])).work()
    parser = argparse.ArgumentParser(
        description="kill, stop and starve hosts, launchers and runners; check every promise"
    )
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 30))
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if not options.inside:
        return in_own_world(arguments)
    soak = Soak(os.environ[MARK], options.seed)
    soak.say(f"seed {options.seed}, home {soak.hf.home.path}")
    # Whatever ends it, nothing of it stays behind.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        return soak.run(options.minutes)
    finally:
        for pid in processes():
            soak.send(pid, signal.SIGKILL)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
