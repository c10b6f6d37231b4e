"""Which nodes and views know each other: the files of `<home>/nodes`, invitations, and joining.

| file | of | has |
| --- | --- | --- |
| `key` | every home | its X25519 key |
| `viewing.json` | a view | the fabric and our login there, and each node with its key |
| `joined.json` | a node | each view with its key and scope, its fabric and our login there, and our name |
| `fabric.json` | the home of `hold fabric` | the fleet and its logins |
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import fcntl
import hashlib
import os
import re
import secrets
import socket
import time
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING

from nacl.exceptions import CryptoError
from nacl.public import PrivateKey, PublicKey
from nacl.secret import SecretBox

from ..config import Config, load
from ..core import directories, jsontext, records
from ..errors import BadArgument, BadInvitation, ConfigError, DamagedRecord, NodeTaken, NoSuchNode, UnsafeDirectory
from ..server.tokens import SCOPES
from .fabric import Address, Fabric, GivenAddress
from .sealing import KEY_ID_BYTES, fingerprint, own_key

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

    from ..home import Home


VIEWING, JOINED, FABRIC = "viewing.json", "joined.json", "fabric.json"
INVITATION_S = 15 * 60.0
_ANSWER_S = 10.0
_MARK = "hf."
_FLEET_CHARACTERS = 8
_NAME = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,30}[a-z0-9])?")


def check_name(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise BadArgument("node", f"{name[:80]!a} is not a name of a node", "use a-z, 0-9 and -, at most 32 characters")
    return name


# The directory.


class Directory:
    """`<home>/nodes`, and its records, changed by one process at a time."""

    def __init__(self, home: Home) -> None:
        self.path = os.path.join(home.path, "nodes")
        self._stamps: dict[str, tuple[int, int]] = {}
        self._records: dict[str, dict[str, Any]] = {}

    def exists(self, name: str) -> bool:
        return os.path.exists(os.path.join(self.path, name))

    def key(self) -> PrivateKey:
        self._make()
        return own_key(os.path.join(self.path, "key"))

    def read(self, name: str) -> dict[str, Any]:
        path = os.path.join(self.path, name)
        try:
            return records.read(path)
        except FileNotFoundError:
            return {}
        except (OSError, ValueError) as problem:
            damaged = DamagedRecord(path, str(getattr(problem, "strerror", None) or problem))
            damaged.fix = "restore it from a copy, or remove it and invite and join again"
            raise damaged from None

    def latest(self, name: str) -> dict[str, Any]:
        """Read again when the file has changed; not to be changed."""
        try:
            found = os.stat(os.path.join(self.path, name))
        except FileNotFoundError:
            return {}
        stamp = found.st_ino, found.st_mtime_ns
        if stamp != self._stamps.get(name):
            self._records[name], self._stamps[name] = self.read(name), stamp
        return self._records[name]

    @contextmanager
    def changing(self, name: str) -> Iterator[dict[str, Any]]:
        self._make()
        fd = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            record = self.read(name)
            yield record
            records.write(fd, name, record)
        finally:
            os.close(fd)

    def _make(self) -> None:
        try:
            directories.private(self.path, directories.OPEN)
        except directories.Unfit as problem:
            raise UnsafeDirectory(problem.path, problem.why, problem.fix) from None


# A view, and the nodes that it knows.


@dataclass(frozen=True)
class Node:
    name: str
    public: PublicKey

    @property
    def raw(self) -> bytes:
        return bytes(self.public)


class Viewing:
    """This home as a view. The file is read again when another process has changed it."""

    def __init__(self, home: Home) -> None:
        self._directory = Directory(home)
        self.key = self._directory.key()
        self.name = view_name(self.key)
        self._known: tuple[object, dict[str, Node]] = None, {}
        try:
            config = load()
        except ConfigError:
            config = Config()  # the command that runs here has said so
        # The NATS server of the settings, if there is one. Its permissions name the fleet, so that is always the same.
        fleet = bytes(self.key.public_key).hex()[:_FLEET_CHARACTERS]
        self.given = (
            GivenAddress(config.nodes_url, fleet, "", "", path=config.nodes_credentials) if config.nodes_url else None
        )

    @property
    def address(self) -> Address | None:
        if self.given is not None:
            return self.given
        found = self._directory.latest(VIEWING).get("fabric")
        return None if found is None else Address(**found)

    def nodes(self) -> dict[str, Node]:
        found = self._directory.latest(VIEWING)
        if found is not self._known[0]:
            keys = {name: bytes.fromhex(entry["key"]) for name, entry in found.get("nodes", {}).items()}
            self._known = found, {name: Node(name, PublicKey(key)) for name, key in keys.items()}
        return self._known[1]

    def node(self, name: str) -> Node:
        known = self.nodes().get(name)
        if known is None:
            raise NoSuchNode(name)
        return known

    def fingerprint(self, node: Node) -> str:
        return fingerprint(bytes(self.key.public_key), node.raw)

    def know(self, name: str, key: bytes) -> None:
        """NodeTaken where the name belongs to another key."""
        with self._directory.changing(VIEWING) as record:
            nodes = record.setdefault("nodes", {})
            if name in nodes and nodes[name]["key"] != key.hex():
                first = Node(name, PublicKey(bytes.fromhex(nodes[name]["key"])))
                raise NodeTaken(name, self.fingerprint(first))
            nodes[name] = {"key": key.hex(), "joined_s": time.time()}

    def forget(self, name: str) -> None:
        with self._directory.changing(VIEWING) as record:
            if record.get("nodes", {}).pop(name, None) is None:
                raise NoSuchNode(name)

    def use(self, address: Address) -> None:
        with self._directory.changing(VIEWING) as record:
            record["fabric"] = address.to_json()


def caller_id(view: str) -> str:
    """The id of callers of this view in the home's own server."""
    return f"view-{view}"


def view_name(key: PrivateKey) -> str:
    """Readable, and different for each key."""
    host = re.sub("[^a-z0-9]+", "-", socket.gethostname().lower()).strip("-")[:20] or "view"
    return f"{host}-{bytes(key.public_key).hex()[:8]}"


# A node, and the views that it trusts.


@dataclass(frozen=True)
class View:
    name: str
    public: PublicKey
    scope: str
    owner: str | None
    labels: dict[str, str]
    # The view's name for this home, and the fabric that connects the two.
    node: str
    fabric: Address
    # The view reported that another machine answers with our key.
    is_copied: bool = False


class Joined:
    """This home as a node. The file is read again when it has changed."""

    def __init__(self, home: Home) -> None:
        self._directory = Directory(home)
        self.key = self._directory.key()

    @property
    def name(self) -> str | None:
        """The name that the last joined view uses for this home."""
        return next((view.node for view in reversed(self.views().values())), None)

    def fabrics(self) -> set[tuple[Address, str]]:
        """The fabrics to connect to, each with our name there: each view may have its own."""
        return {(view.fabric, view.node) for view in self.views().values()}

    def views(self) -> dict[str, View]:
        return {name: _view(name, each) for name, each in self._directory.latest(JOINED).get("views", {}).items()}

    def view_of(self, key_id: bytes) -> View | None:
        return next((view for view in self.views().values() if bytes(view.public)[:KEY_ID_BYTES] == key_id), None)

    def fingerprint(self, view: View) -> str:
        return fingerprint(bytes(self.key.public_key), bytes(view.public))

    def join(self, view: View) -> None:
        facts = {"scope": view.scope, "owner": view.owner, "labels": view.labels, "node": view.node}
        with self._directory.changing(JOINED) as record:
            views = record.setdefault("views", {})
            views.pop(view.name, None)
            views[view.name] = {"key": bytes(view.public).hex(), **facts, "fabric": view.fabric.to_json()}

    def note_copied(self, view: View, is_copied: object) -> None:
        """Record what a view reports at each handshake: whether another machine has our key. None if it does not
        know."""
        if isinstance(is_copied, bool) and is_copied != view.is_copied:
            with self._directory.changing(JOINED) as record:
                if view.name in record.get("views", {}):
                    record["views"][view.name]["is_copied"] = is_copied

    def trust(self, name: str, scope: str) -> None:
        """What this view may do from now on."""
        with self._directory.changing(JOINED) as record:
            _known(record, name)["scope"] = scope

    def revoke(self, name: str) -> None:
        with self._directory.changing(JOINED) as record:
            _known(record, name)
            del record["views"][name]


def _known(record: dict[str, Any], name: str) -> dict[str, Any]:
    entry: dict[str, Any] | None = record.get("views", {}).get(name)
    if entry is None:
        raise BadArgument("view", f"there is no view {name[:80]!a}", "see `hold node ls`")
    return entry


def _view(name: str, entry: dict[str, Any]) -> View:
    public, address = PublicKey(bytes.fromhex(entry["key"])), Address(**entry["fabric"])
    more = entry["owner"], entry["labels"], entry["node"], address, entry.get("is_copied", False)
    return View(name, public, entry["scope"], *more)


# Invitations: one line of text that has everything the other machine needs.


@dataclass(frozen=True)
class Invitation:
    fabric: Address
    node: str
    view: str
    view_key: str
    scope: str
    # Where the view waits for the answer, and until when.
    reply: str
    until_s: float
    secret: str

    def text(self) -> str:
        body = jsontext.write({**asdict(self), "fabric": self.fabric.to_json(), "v": 1}).encode()
        # Every shell and parser reads it as one plain word.
        return _MARK + base64.urlsafe_b64encode(hashlib.sha256(body).digest()[:6] + body).decode().rstrip("=")

    @staticmethod
    def read(text: str, now_s: float) -> Invitation:
        text = "".join(text.split()).removeprefix(_MARK)
        try:
            raw = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
            check, body = raw[:6], raw[6:]
            if hashlib.sha256(body).digest()[:6] != check:
                raise ValueError
            found = jsontext.read_finite(body)
            found.pop("v")
            invitation = Invitation(Address(**found.pop("fabric")), **found)
            check_name(invitation.node)
        except (ValueError, TypeError, KeyError, AttributeError, binascii.Error, BadArgument):
            raise BadInvitation("it is incomplete or was changed on the way") from None
        if now_s >= invitation.until_s:
            raise BadInvitation("it has expired")
        return invitation

    def with_login(self, user: str, password: str) -> Invitation:
        return replace(self, fabric=replace(self.fabric, user=user, password=password))

    def with_credentials(self, credentials: str) -> Invitation:
        return replace(self, fabric=replace(self.fabric, credentials=credentials))

    @property
    def exchange(self) -> str:
        return self.reply.rpartition(".")[2]

    @property
    def box(self) -> SecretBox:
        return SecretBox(bytes.fromhex(self.secret))


def invite(viewing: Viewing, address: Address, node: str, scope: str) -> Invitation:
    """Without the login of the node on the fabric."""
    exchange = secrets.token_hex(16)
    return Invitation(
        fabric=Address(address.url, address.fleet, "", "", address.certificate),
        node=check_name(node),
        view=viewing.name,
        view_key=bytes(viewing.key.public_key).hex(),
        scope=scope,
        reply=address.subject("v", viewing.name, exchange),
        until_s=time.time() + INVITATION_S,
        secret=secrets.token_hex(SecretBox.KEY_SIZE),
    )


async def wait_for_join(
    viewing: Viewing,
    address: Address,
    invitation: Invitation,
    ready: Callable[[], None],
    grant: Callable[[], None],
) -> str:
    """Wait until the node has joined; returns the fingerprint of the two. TimeoutError when the invitation has expired.
    `ready` is called when a node can connect, `grant` before the node learns that it may."""
    came: asyncio.Queue[tuple[bytes, str]] = asyncio.Queue()

    def heard(exchange: str, message: bytes | None, reply: str) -> None:
        if message is not None and exchange == invitation.exchange:
            came.put_nowait((message, reply))

    async with Fabric(address, "v", viewing.name, heard) as fabric:
        async with asyncio.timeout(max(0.0, invitation.until_s - time.time())):
            await fabric.ready.wait()
            ready()
            while True:
                message, reply = await came.get()
                said = _unboxed(invitation.box, message)
                if said is None or said.get("node") != invitation.node:
                    continue
                key = bytes.fromhex(str(said["key"]))
                try:
                    viewing.know(invitation.node, key)
                except NodeTaken as problem:
                    await fabric.publish(reply, _boxed(invitation.box, {"refused": problem.to_json()}))
                    await fabric.flush()
                    raise
                grant()
                await fabric.publish(reply, _boxed(invitation.box, {"joined": True}))
                await fabric.flush()
                return fingerprint(bytes(viewing.key.public_key), key)


def level(scope: object) -> int:
    """A scope as an index of `SCOPES`. The least for one that is not known here: a later release may have others."""
    return SCOPES.index(scope) if scope in SCOPES else 0


async def join(
    joined: Joined, text: str, scope: str | None, owner: str | None, labels: dict[str, str]
) -> tuple[str, str]:
    """Join a view, with the scope of its invitation or a lower one. Returns the name of the view, which may now see
    this home, and the fingerprint of the two."""
    invitation = Invitation.read(text, time.time())
    scope = min(invitation.scope, scope or invitation.scope, key=level)
    answers: asyncio.Queue[bytes | None] = asyncio.Queue()
    view_key = PublicKey(bytes.fromhex(invitation.view_key))
    reply = invitation.fabric.subject("n", invitation.node, invitation.exchange)
    # Until it has joined, the login may receive this one answer and nothing else.
    async with Fabric(
        invitation.fabric,
        "n",
        invitation.node,
        lambda _, message, __: answers.put_nowait(message),
        exchange=invitation.exchange,
    ) as fabric:
        try:
            async with asyncio.timeout(_ANSWER_S):
                await fabric.ready.wait()
                said = {"node": invitation.node, "key": bytes(joined.key.public_key).hex()}
                await fabric.publish(invitation.reply, _boxed(invitation.box, said), reply)
                message = await answers.get()
        except TimeoutError:
            why = f"the fabric cannot be used: {fabric.problem}" if fabric.problem else "no answer"
            raise BadInvitation(why) from None
    if message is None:
        raise BadInvitation("it was used already, or `hold node invite` is no longer waiting")
    answer = _unboxed(invitation.box, message)
    if answer is None:
        raise BadInvitation("it was changed on the way")
    if "refused" in answer:
        raise NodeTaken.from_wire(answer["refused"])
    view = View(invitation.view, view_key, scope, owner, labels, invitation.node, invitation.fabric)
    joined.join(view)
    return view.name, joined.fingerprint(view)


def _boxed(box: SecretBox, message: dict[str, Any]) -> bytes:
    return bytes(box.encrypt(jsontext.write(message).encode()))


def _unboxed(box: SecretBox, message: bytes) -> dict[str, Any] | None:
    try:
        said = jsontext.read_finite(box.decrypt(message))
    except (CryptoError, ValueError):
        return None
    return said if isinstance(said, dict) else None
