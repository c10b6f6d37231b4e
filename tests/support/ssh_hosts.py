"""A machine to log in to: a real sshd on loopback with keys, a home and a network cable of its own."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
from pathlib import Path

from support import processes
from support.forwarder import LOOPBACK, Forwarder, bound
from support.waiting import TooLate, until

# Between our look for a free port and sshd's bind somebody else may take it.
_TRIES = 5
_LEAVING_BOUND_S = 10.0
_COMMAND_BOUND_S = 30.0

# ForceCommand: sshd enters the home that the user database names, which is the home of whoever runs the tests.
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
    # Whoever may not read the list cannot be refused for it either: our sshd runs as the same user.
    if os.access("/etc/shadow", os.R_OK) and f"\n{user.pw_name}:!" in "\n" + Path("/etc/shadow").read_text():
        return f"the account of {user.pw_name} is locked, and sshd lets nobody in who is"
    return None


class SshHost:
    """`argv` + [`host`, command] logs in as the current user, who has `home` there.

    All connections pass through a cable: `cut` holds them up, `mend` lets them go on, `drop` breaks them off, `down`
    breaks them off and refuses new ones until `mend`.
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
        self._cable = Forwarder(port)
        user = pwd.getpwuid(os.getuid()).pw_name
        facts = {"root": root, "host": self.host, "address": LOOPBACK, "port": self._cable.port, "user": user}
        self.config.write_text(_CLIENT.format(**facts))

        self.cut = self._cable.cut
        self.mend = self._cable.mend
        self.drop = self._cable.drop
        self.down = self._cable.down

    @property
    def connections(self) -> int:
        """How many connections there are now."""
        return self._cable.connections

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
            self._cable.close()
            self._wait_alone()
        finally:
            self._sshd.send_signal(signal.SIGTERM)
            self._sshd.wait(_LEAVING_BOUND_S)
            shutil.rmtree(self.root)

    def _serve(self) -> tuple[subprocess.Popen[bytes], int]:
        """A running sshd, and its port."""
        if os.geteuid() == 0:
            # The directory that sshd locks itself into before somebody has logged in; its path is built in. It is
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
                # sshd starts itself anew for each connection and wants an absolute path for that.
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
        """Until sshd serves nobody."""
        below = processes.descendants(self._sshd.pid)
        for row in below:
            if row.comm.startswith("sshd"):
                processes.wait_any([row], _LEAVING_BOUND_S)


def _sshd() -> str | None:
    return shutil.which("sshd", path=os.environ.get("PATH", "") + ":/usr/sbin:/sbin")
