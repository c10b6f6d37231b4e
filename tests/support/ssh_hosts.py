"""A machine to log in to: a real sshd on loopback with keys, a home and a network cable of its own."""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import signal
import socket
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path

from support import processes
from support.waiting import TooLate, until

# Another process may take the port between our look for a free one and sshd's bind.
_TRIES = 5
_LEAVING_BOUND_S = 30.0
_COMMAND_BOUND_S = 30.0

# ForceCommand: sshd enters the home that the user database names, which is the home of the user who runs the tests.
_SERVER = """
ListenAddress {address}
Port {port}
HostKey {root}/host_key
AuthorizedKeysFile {root}/user_key.pub
PidFile none
StrictModes no
UsePAM no
UseDNS no
PermitRootLogin prohibit-password
PasswordAuthentication no
KbdInteractiveAuthentication no
PrintMotd no
PrintLastLog no
MaxStartups 100
MaxSessions 100
SetEnv HOME={home} XDG_RUNTIME_DIR={runtime} TMPDIR={tmp}
ForceCommand cd; c=$SSH_ORIGINAL_COMMAND; unset SSH_ORIGINAL_COMMAND; exec "$SHELL" ${{c:+-c "$c"}}
"""

_CLIENT = """
Host {host}
    HostName {address}
    Port {port}
    User {user}
    HostKeyAlias {host}
    IdentityFile {root}/user_key
    IdentitiesOnly yes
    IdentityAgent none
    UserKnownHostsFile {root}/known_hosts
    GlobalKnownHostsFile none
    StrictHostKeyChecking yes
    PreferredAuthentications publickey
"""


def missing() -> str | None:
    """Why this machine cannot run our sshd; None when it can."""
    if _sshd() is None:
        return "no sshd"
    for name in ("ssh", "ssh-keygen"):
        if shutil.which(name) is None:
            return f"no {name}"
    user = pwd.getpwuid(os.getuid())
    if user.pw_shell.endswith(("/nologin", "/false")):
        return f"{user.pw_name} has no login shell"
    # A user who may not read the list cannot be refused for it either: our sshd runs as the same user.
    if os.access("/etc/shadow", os.R_OK) and f"\n{user.pw_name}:!" in "\n" + Path("/etc/shadow").read_text():
        return f"the account of {user.pw_name} is locked, and sshd lets nobody in who is"
    return None


class SshHost:
    """`argv` + [`host`, command] logs in as the current user, who has `home` there.

    All connections pass through a cable: its `cut` holds them up, `mend` lets them go on, `drop` breaks them off,
    `down` breaks them off and refuses new ones until `mend`.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.host = f"far-{root.name.rpartition('-')[2].lower()}"
        self.place = f"ssh:{self.host}"
        self.home = root / "home"
        self.runtime = root / "run"
        self.config = root / "ssh_config"
        self.argv = ["ssh", "-F", str(self.config)]
        self.log = root / "sshd.log"
        for directory in (self.home, self.runtime, root / "tmp"):
            directory.mkdir(mode=0o700)
        for key in ("host_key", "user_key"):
            make = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", key, "-f", str(root / key)]
            subprocess.run(make, stdin=subprocess.DEVNULL, timeout=_COMMAND_BOUND_S, check=True)
        (root / "known_hosts").write_text(f"{self.host} {(root / 'host_key.pub').read_text()}")
        self._sshd, port = self._serve()
        self.cable = Forwarder(port)
        user = pwd.getpwuid(os.getuid()).pw_name
        facts = {"root": root, "host": self.host, "address": LOOPBACK, "port": self.cable.port, "user": user}
        self.config.write_text(_CLIENT.format(**facts))

    def run(self, command: str, input: str | None = None) -> str:
        """Run a command line there to its end; its stdout. Fails when the command does."""
        done = subprocess.run(
            [*self.argv, "-o", "BatchMode=yes", self.host, command],
            input=input,
            stdin=subprocess.DEVNULL if input is None else None,
            capture_output=True,
            encoding="utf-8",
            errors="surrogateescape",
            timeout=_COMMAND_BOUND_S,
            check=False,
        )
        if done.returncode != 0:
            raise AssertionError(f"ssh {command} ended with {done.returncode}: {done.stderr}\n{self.log.read_text()}")
        return done.stdout

    def close(self) -> None:
        """Break everything off: a control connection that a test left open ends by that. Then sshd and the files."""
        try:
            self.cable.close()
            self._wait_alone()
        finally:
            self._sshd.send_signal(signal.SIGTERM)
            self._sshd.wait(_LEAVING_BOUND_S)
            shutil.rmtree(self.root)

    def _serve(self) -> tuple[subprocess.Popen[bytes], int]:
        """A running sshd, and its port."""
        if os.geteuid() == 0:
            # The directory that sshd locks itself into before a login; its path is built in. It is
            # every sshd's, and stays.
            os.makedirs("/run/sshd", mode=0o755, exist_ok=True)
        for _ in range(_TRIES):
            with bound(0) as free:
                port: int = free.getsockname()[1]
            facts = {"home": self.home, "runtime": self.runtime, "tmp": self.root / "tmp"}
            text = _SERVER.format(root=self.root, address=LOOPBACK, port=port, **facts)
            (self.root / "sshd_config").write_text(text)
            sshd = _sshd()
            assert sshd is not None
            with self.log.open("wb") as log:
                # sshd executes itself again for each connection and needs an absolute path for that.
                running = subprocess.Popen(
                    [sshd, "-D", "-e", "-f", str(self.root / "sshd_config")],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    process_group=0,
                )
            if self._is_listening(running):
                return running, port
        raise AssertionError(f"sshd does not start: {self.log.read_text()}")

    def _is_listening(self, running: subprocess.Popen[bytes]) -> bool:
        def answer() -> str | None:
            if "Server listening" in self.log.read_text():
                return "yes"
            return "no" if running.poll() is not None else None

        try:
            return until(answer, what="a listening sshd") == "yes"
        except TooLate:
            running.kill()
            running.wait()
            raise

    def _wait_alone(self) -> None:
        """Until sshd has no connection."""
        below = processes.descendants(self._sshd.pid)
        for row in below:
            if row.comm.startswith("sshd"):
                processes.wait_any([row], _LEAVING_BOUND_S)


def _sshd() -> str | None:
    return shutil.which("sshd", path=os.environ.get("PATH", "") + ":/usr/sbin:/sbin")


LOOPBACK = "127.0.0.1"

_CHUNK_BYTES = 65536
_BACKLOG = 64


class Forwarder:
    """Listens on a free port of loopback and passes each connection on to another port."""

    def __init__(self, target_port: int) -> None:
        self._target_port = target_port
        # Bound and never listening: keeps the port reserved while no process listens there.
        self._holder = bound(0)
        self.port: int = self._holder.getsockname()[1]
        self._flowing = True
        self._changed = threading.Condition()
        self._links: set[Link] = set()
        self._listener: socket.socket | None = None
        self._acceptor: threading.Thread | None = None
        self._listen()

    @property
    def connections(self) -> int:
        """How many pass through now."""
        with self._changed:
            return len(self._links)

    def cut(self) -> None:
        """Nothing passes: existing and new connections hang."""
        with self._changed:
            self._flowing = False

    def mend(self) -> None:
        """Everything passes again, also what was held up; the port is listened on."""
        with self._changed:
            self._flowing = True
            self._changed.notify_all()
        if self._listener is None:
            self._listen()

    def drop(self) -> None:
        """Connections are broken off on both sides; new ones fare as before."""
        with self._changed:
            links = list(self._links)
            for link in links:
                link.break_off()
            self._changed.notify_all()
        for link in links:
            link.join()

    def down(self) -> None:
        """Connections are broken off and new ones refused."""
        if self._listener is not None and self._acceptor is not None:
            with self._changed:
                listener, self._listener = self._listener, None
                # Wakes accept(), which close() would not.
                listener.shutdown(socket.SHUT_RDWR)
                self._changed.notify_all()
            self._acceptor.join()
            listener.close()
        self.drop()

    def close(self) -> None:
        self.down()
        self._holder.close()

    def _listen(self) -> None:
        listener = bound(self.port)
        listener.listen(_BACKLOG)
        self._listener = listener
        self._acceptor = threading.Thread(target=self._accept, args=(listener,), name="forwarder", daemon=True)
        self._acceptor.start()

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                near, _ = listener.accept()
            except OSError:
                return
            self._wait_flowing(lambda: self._listener is not listener)
            if self._listener is not listener:
                near.close()
                return
            try:
                far = socket.create_connection((LOOPBACK, self._target_port))
            except OSError:
                near.close()
                continue
            with self._changed:
                self._links.add(Link(near, far, self._wait_flowing, self._forget))

    def _wait_flowing(self, or_else: Callable[[], bool]) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._flowing or or_else())

    def _forget(self, link: Link) -> None:
        with self._changed:
            self._links.discard(link)


class Link:
    """One connection: two sockets and a thread for each direction."""

    def __init__(
        self,
        near: socket.socket,
        far: socket.socket,
        wait_flowing: Callable[[Callable[[], bool]], None],
        forget: Callable[[Link], None],
    ) -> None:
        self._ends = (near, far)
        self._wait_flowing = wait_flowing
        self._forget = forget
        self._is_broken = False
        self._open_directions = 2
        self._closing = threading.Lock()
        self._threads = [
            threading.Thread(target=self._pump, args=ends, name="forwarder", daemon=True)
            for ends in ((near, far), (far, near))
        ]
        for thread in self._threads:
            thread.start()

    def break_off(self) -> None:
        self._is_broken = True
        with self._closing:
            self._shut_down()

    def join(self) -> None:
        for thread in self._threads:
            thread.join()

    def _pump(self, source: socket.socket, sink: socket.socket) -> None:
        try:
            while data := source.recv(_CHUNK_BYTES):
                self._wait_flowing(lambda: self._is_broken)
                sink.sendall(data)
            self._wait_flowing(lambda: self._is_broken)
            sink.shutdown(socket.SHUT_WR)
        except OSError:
            # One side is gone; the other learns it as soon as anything passes again.
            self._wait_flowing(lambda: self._is_broken)
            self._shut_down()
        with self._closing:
            self._open_directions -= 1
            if self._open_directions:
                return
            for end in self._ends:
                end.close()
        self._forget(self)

    def _shut_down(self) -> None:
        for end in self._ends:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)


def bound(port: int) -> socket.socket:
    made = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    made.bind((LOOPBACK, port))
    return made
