"""A NATS server that `hold fabric` did not start: the settings, invitations with credentials, and what is refused."""

from __future__ import annotations

import base64
import binascii
import json
import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from nacl.signing import SigningKey

from holdfast.nodes.own_server import program
from support.fleets import Fleet, Machine, free_port, leave
from support.serving import START_BOUND_S, new_certificate
from support.through_nodes import attached, seen_until
from support.waiting import until

if TYPE_CHECKING:
    from collections.abc import Callable

    from support.program import Program
    from support.world import World

GUIDE = Path(__file__).parents[2] / "docs/guides/many-machines.md"
SNIPPET: str
(SNIPPET,) = re.findall(r"^```text\n(authorization .*?)^```$", GUIDE.read_text(), re.MULTILINE | re.DOTALL)
(INVITE,) = re.findall(r"^hold (node invite build-box --credentials) build-box.creds$", GUIDE.read_text(), re.MULTILINE)
NODE = "build-box"
SECRETS = {"view": "FIRST-SECRET", NODE: "SECOND-SECRET"}
OPERATOR, ACCOUNT, USER = 14 << 3, 0, 20 << 3
UNLIMITED = {"subs": -1, "data": -1, "payload": -1}


class Nkey:
    """A key of NATS, as text: a prefix, the key and a checksum, in base 32."""

    def __init__(self, kind: int) -> None:
        self.key = SigningKey.generate()
        self.public = _coded(bytes([kind]) + bytes(self.key.verify_key))
        self.seed = _coded(bytes([18 << 3 | kind >> 5, (kind & 31) << 3]) + bytes(self.key))

    def jwt(self, subject: str, kind: str, **facts: object) -> str:
        claims = {"jti": kind, "iat": 1, "iss": self.public, "sub": subject, "name": kind}
        parts = [{"typ": "JWT", "alg": "ed25519-nkey"}, {**claims, "nats": {"type": kind, "version": 2, **facts}}]
        text = ".".join(_url64(json.dumps(part).encode()) for part in parts)
        return f"{text}.{_url64(self.key.sign(text.encode()).signature)}"


def _coded(raw: bytes) -> str:
    return base64.b32encode(raw + binascii.crc_hqx(raw, 0).to_bytes(2, "little")).decode().rstrip("=")


def _url64(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).decode().rstrip("=")


class GivenFleet(Fleet):
    """A view with a NATS server that somebody else runs."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.view = Machine(world, "view")
        self.port = free_port()
        self.server: Program | None = None
        self.configuration = world.root / "nats-server.conf"
        self.tls: tuple[Path, Path] | None = None
        self.file = {user: world.root / f"{user}.credentials" for user in SECRETS}
        for user, path in self.file.items():
            path.write_text(f"{user}:{SECRETS[user]}\n")
        self.configure()

    def configure(self, url: str | None = None, credentials: Path | None = None) -> None:
        path = self._world.root / "view.toml"
        url, credentials = url or f"nats://127.0.0.1:{self.port}", credentials or self.file["view"]
        path.write_text(f'[nodes]\nurl = "{url}"\ncredentials = "{credentials}"\n')
        self.view.env["HOLDFAST_CONFIG"] = str(path)

    def use_tls(self) -> None:
        """Every machine has to be told whom to trust."""
        self.tls = new_certificate(self._world.root)
        self.configure(f"tls://127.0.0.1:{self.port}")
        self.view.env["SSL_CERT_FILE"] = str(self.tls[0])

    def machine(self, name: str) -> Machine:
        machine = super().machine(name)
        if self.tls is not None:
            machine.env["SSL_CERT_FILE"] = str(self.tls[0])
        return machine

    def users(self) -> str:
        """The guide's, with the names that `hold node invite` prints."""
        said = self.refused()
        found = re.search(r"hf1\.(\w+)\.v\.([\w-]+)\.>", said)
        assert found, said
        return SNIPPET.replace("FLEET", found[1]).replace("VIEW", found[2])

    def run(self, users: str) -> None:
        if self.server is not None:
            leave(self.server)
        tls = 'tls {{ cert_file: "{}", key_file: "{}" }}\n'.format(*self.tls) if self.tls else ""
        self.configuration.write_text(f'listen: "127.0.0.1:{self.port}"\n{tls}{users}')
        self.server = server = self._world.program([program(), "-c", str(self.configuration)])
        self._world.closing.callback(leave, server)
        until(lambda: "Server is ready" in server.errors(), START_BOUND_S, what="the NATS server")

    def invite(self, name: str, scope: str = "manage") -> tuple[Program, str]:
        assert name == NODE
        inviting = self.view.program(*INVITE.split(), self.file[name], "--scope", scope)
        code = inviting.line(START_BOUND_S).removeprefix("hold node join ")
        assert code.startswith("hf."), inviting.errors()
        return inviting, code

    def join(self, name: str, scope: str = "manage") -> Machine:
        machine = self.machine(name)
        inviting, code = self.invite(name, scope)
        machine.hold("node", "join", code)
        assert inviting.wait(START_BOUND_S) == 0, inviting.errors()
        return machine

    def refused(self, *words: object, status: int = 2) -> str:
        """What an invitation says that is refused before anything is printed."""
        done = self.view.hold("node", "invite", NODE, *words, check=False)
        assert (done.returncode, done.stdout) == (status, ""), done.stderr
        return str(done.stderr)


@pytest.fixture
def given(world: World, monkeypatch: pytest.MonkeyPatch) -> GivenFleet:
    monkeypatch.delenv("HOLDFAST_HOME", raising=False)
    return GivenFleet(world)


def passwords(fleet: GivenFleet) -> str:
    fleet.use_tls()
    return fleet.users()


def nkeys(fleet: GivenFleet) -> str:
    users = fleet.users()
    for user, secret in SECRETS.items():
        key = Nkey(USER)
        users = users.replace(f'user: "{user}", password: "{secret}"', f"nkey: {key.public}")
        fleet.file[user].write_text(f"# the login of {user}\n{key.seed}\n")
    return users


def creds(fleet: GivenFleet) -> str:
    """An operator signs an account, and that its users, with what each may do."""
    operator, account = Nkey(OPERATOR), Nkey(ACCOUNT)
    allowed = re.findall(r'allow: \["(.*?)"', fleet.users())
    for user, publish, subscribe in zip(SECRETS, allowed[::2], allowed[1::2], strict=True):
        key = Nkey(USER)
        may = {"pub": {"allow": [publish]}, "sub": {"allow": [subscribe]}}
        jwt = account.jwt(key.public, "user", **may, **UNLIMITED)
        fleet.file[user].write_text(
            f"-----BEGIN NATS USER JWT-----\n{jwt}\n------END NATS USER JWT------\n\n"
            f"-----BEGIN USER NKEY SEED-----\n{key.seed}\n------END USER NKEY SEED------\n"
        )
    limits = {**UNLIMITED, "imports": -1, "exports": -1, "wildcards": True, "conn": -1, "leaf": -1}
    signed = operator.jwt(account.public, "account", limits=limits)
    return (
        f"operator: {operator.jwt(operator.public, 'operator')}\n"
        f"resolver: MEMORY\nresolver_preload: {{ {account.public}: {signed} }}\n"
    )


@pytest.mark.parametrize("kind", [passwords, nkeys, creds])
def test_homes_see_each_other_through_a_server_that_exists_with_the_four_permissions_of_the_guide(
    given: GivenFleet, kind: Callable[[GivenFleet], str]
) -> None:
    given.run(kind(given))
    node = given.node(NODE)
    assert node.file("joined.json").stat().st_mode & 0o777 == 0o600
    id = node.hold("start", "--tty", "--name", "repl", "--", "echo ready; exec cat").stdout.strip()
    assert [row["id"] for row in json.loads(given.view.hold("ls", "--nodes", "--json").stdout)] == [id]
    ran = given.view.hold("run", "--place", f"node:{NODE}", "--", "echo $HOLDFAST_HOME; exit 3", check=False)
    assert (ran.returncode, ran.stdout) == (3, f"{node.home}\n"), ran.stderr
    serving = given.serve_view()
    until(lambda: serving.call("GET", f"/v1/nodes/{NODE}/info").status == 200, START_BOUND_S, what="the node")
    with attached(serving, NODE, id) as viewer:
        viewer.send(json.dumps({"type": "input", "id": 1, "submit": "typed"}))
        seen_until(viewer, b"typed")
    # The secrets are where they were given, and on the machine that joined.
    texts = [path.read_text() for path in given.file.values()]
    secrets = [word for text in texts for word in re.findall(r"\bSU[A-Z2-7]{56}\b|\w+-SECRET", text)]
    assert len(secrets) == 2
    files = [path for path in given._world.root.rglob("*") if path.is_file()]
    having = {path for path in files for secret in secrets if secret.encode() in path.read_bytes()}
    assert having - {given.configuration, *given.file.values()} == {node.file("joined.json")}
    problems = json.loads(given.view.hold("doctor", "--json", check=False).stdout)
    assert [each["level"] for each in problems if each["check"] in ("fabric", "node")] == ["ok", "ok"]


def test_a_login_that_is_refused_or_lacks_one_of_the_four_permissions_is_named_before_an_invitation(
    given: GivenFleet,
) -> None:
    users = given.users()
    words = ("--credentials", given.file[NODE])
    assert "nothing listens at its address" in given.refused(*words)
    given.run(users)
    subjects = re.findall(r'allow: \["(.*?)"', users)
    for whose, subject in zip(("this home", "this home", NODE, NODE), subjects, strict=True):
        given.run(users.replace(f'"{subject}"', '"nothing"'))
        said = given.refused(*words)
        assert f"cannot be used by {whose}: a permission is missing" in said
        assert subject.rstrip(">") in said
        assert "many-machines.md" in said
    given.run(users)
    for user, whose in (("view", "this home"), (NODE, NODE)):
        right = given.file[user].read_text()
        given.file[user].write_text(f"{user}:another-secret")
        said = given.refused(*words)
        assert f"cannot be used by {whose}: it refuses our login" in said
        assert "another-secret" not in said
        given.file[user].write_text(right)
    # With the right ones it is invited.
    given.join(NODE)


def test_a_file_without_credentials_or_without_a_server_is_refused_by_name(given: GivenFleet, tmp_path: Path) -> None:
    users = given.users()
    given.run(users)
    seed = Nkey(USER).seed
    texts = {"text": "dear reader, no login here", "damaged": seed[:20] + ("A" if seed[20] != "A" else "B") + seed[21:]}
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
    for name, why in (
        ("absent", "No such file or directory"),
        ("text", "has neither `.creds`, nor an nkey seed, nor USER:PASSWORD"),
        ("damaged", "the seed is damaged"),
        ("", "Is a directory"),
    ):
        said = given.refused("--credentials", tmp_path / name)
        assert why in said
        assert "dear reader" not in said
        assert texts["damaged"] not in said
    # The file of this home.
    words = ("--credentials", given.file[NODE])
    given.configure(credentials=tmp_path / "absent")
    said = given.refused(*words)
    assert f"this home: no credentials: {tmp_path}/absent: No such file" in said
    assert "nodes.credentials" in said
    # The address.
    given.configure(url=f"nats://view:FIRST-SECRET@127.0.0.1:{given.port}")
    said = given.refused(*words)
    assert "nodes.url: this is not the address of a NATS server" in said
    assert "FIRST-SECRET" not in said
    given.configure(url="nats://nats.example:4222")
    assert "has no TLS: use tls://" in given.refused(*words)
    fabric = given.view.hold("fabric", check=False)
    assert (fabric.returncode, fabric.stdout) == (2, "")
    assert "this home uses nats://nats.example:4222" in fabric.stderr
    del given.view.env["HOLDFAST_CONFIG"]
    assert "the setting nodes.url is missing" in given.refused(*words)


def test_a_server_with_lost_credentials_says_so_and_connects_when_they_are_there_again(given: GivenFleet) -> None:
    given.run(given.users())
    given.node(NODE)
    lost = given.file["view"].rename(given.file["view"].with_name("lost"))
    serving = given.serve_view()
    why = f"no credentials: {given.file['view']}: No such file or directory"
    until(lambda: why in serving.program.errors(), START_BOUND_S, what="the reason in the log of the server")
    assert given.listed()[NODE]["why"] == f"no fabric: {why}"
    (found,) = json.loads(given.view.hold("doctor", "--json", check=False).stdout)[-1:]
    assert (found["check"], found["level"]) == ("fabric", "problem")
    assert "nodes.credentials" in found["fix"]
    lost.rename(given.file["view"])
    until(lambda: serving.call("GET", f"/v1/nodes/{NODE}/info").status == 200, START_BOUND_S, what="the node")


def test_an_invitation_of_our_own_fabric_is_one_that_the_previous_release_can_read(fleet: Fleet) -> None:
    _, code = fleet.invite("a")
    raw = base64.urlsafe_b64decode(code.removeprefix("hf.") + "==")
    assert set(json.loads(raw[6:])["fabric"]) == {"url", "fleet", "user", "password"}
