"""Keys, the handshake of an exchange, and sealed messages, over PyNaCl.

Each home has one X25519 key. The two messages of the handshake are sealed between the fixed keys of view and node and
carry a fresh key each; everything after them is sealed between the fresh keys. The fabric sees lengths and times only.
"""

from __future__ import annotations

import hashlib
import os
import stat
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING

from nacl.exceptions import CryptoError
from nacl.public import Box, PrivateKey, PublicKey

from ..core import jsontext, records
from ..errors import UnsafeDirectory

if TYPE_CHECKING:
    from typing import Any


KEY_BYTES = 32
# Which of the two fixed keys sealed an `open`: the first bytes of the sender's public key.
KEY_ID_BYTES = 8
_NUMBER = struct.Struct(">Q")
_TO_NODE, _TO_VIEW = b"n", b"v"


class BadSeal(Exception):
    """A message that its sender cannot have made, or not for this exchange."""


def own_key(path: str) -> PrivateKey:
    """The key of the home; made at the first call, readable by its owner alone."""
    if not os.path.lexists(path):
        records.new_once(None, path, bytes(PrivateKey.generate()))
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    with open(fd, "rb") as file:
        found = os.fstat(fd)
        raw = file.read(KEY_BYTES + 1)
    if found.st_uid != os.geteuid() or stat.S_IMODE(found.st_mode) & 0o077 or len(raw) != KEY_BYTES:
        fix = f"make it yours alone (`chmod 600 {path}`), or remove it and join again"
        raise UnsafeDirectory(path, "the key of this home can be read by others or is damaged", fix)
    return PrivateKey(raw)


def fingerprint(*keys: bytes) -> str:
    """For people to compare: the same for both sides of a pair."""
    short = hashlib.sha256(b"".join(sorted(keys))).hexdigest()[:24]
    return "-".join(short[at : at + 4] for at in range(0, len(short), 4))


@dataclass(frozen=True)
class Seal:
    """The fresh keys of one exchange, as one side holds them. A nonce is a direction and a number, each used once."""

    box: Box
    out: bytes
    into: bytes

    def seal(self, number: int, body: bytes) -> bytes:
        return self.box.encrypt(body, self._nonce(self.out, number)).ciphertext

    def open(self, number: int, sealed: bytes) -> bytes:
        try:
            return self.box.decrypt(sealed, self._nonce(self.into, number))
        except (CryptoError, ValueError):
            raise BadSeal("a message that was changed on the way") from None

    def _nonce(self, direction: bytes, number: int) -> bytes:
        return direction.ljust(Box.NONCE_SIZE - _NUMBER.size, b"\0") + _NUMBER.pack(number)


class Opening:
    """The view's side of the handshake: `message` goes to the node, its answer to `finish`."""

    def __init__(self, key: PrivateKey, node: PublicKey, facts: dict[str, Any]) -> None:
        self._fresh = PrivateKey.generate()
        self._box = Box(key, node)
        body = {**facts, "fresh": bytes(self._fresh.public_key).hex()}
        self._facts = facts
        self.message = bytes(key.public_key)[:KEY_ID_BYTES] + self._box.encrypt(jsontext.write(body).encode())

    def finish(self, answer: bytes) -> tuple[Seal, dict[str, Any]]:
        said = _opened(self._box, answer)
        if said.get("after") != _hash(self.message) or any(said.get(key) != self._facts[key] for key in self._facts):
            raise BadSeal("an answer to another handshake")
        return Seal(Box(self._fresh, _public(said)), _TO_NODE, _TO_VIEW), said


def answer(
    key: PrivateKey, view: PublicKey, message: bytes, more: dict[str, Any]
) -> tuple[Seal, bytes, dict[str, Any]]:
    """The node's side: what to seal with from now on, the answer to send, and what the view said."""
    box = Box(key, view)
    said = _opened(box, message[KEY_ID_BYTES:])
    theirs, fresh = _public(said), PrivateKey.generate()
    facts = {name: value for name, value in said.items() if name != "fresh"}
    body = {**facts, **more, "fresh": bytes(fresh.public_key).hex(), "after": _hash(message)}
    return Seal(Box(fresh, theirs), _TO_VIEW, _TO_NODE), bytes(box.encrypt(jsontext.write(body).encode())), facts


def _opened(box: Box, sealed: bytes) -> dict[str, Any]:
    try:
        said = jsontext.read_finite(box.decrypt(sealed))
    except (CryptoError, ValueError, RecursionError):
        raise BadSeal("a handshake that its sender cannot have made") from None
    if not isinstance(said, dict):
        raise BadSeal("a handshake without facts")
    return said


def _public(said: dict[str, Any]) -> PublicKey:
    try:
        return PublicKey(bytes.fromhex(said["fresh"]))
    except (KeyError, TypeError, ValueError):
        raise BadSeal("a handshake without a key") from None


def _hash(message: bytes) -> str:
    return hashlib.sha256(message).hexdigest()
