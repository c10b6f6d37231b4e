"""What `hold doctor` finds out about the fabric, the nodes of this view, and this home as a node."""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING

from ..core.records import lock_is_free
from ..errors import HoldfastError
from ..model import Finding
from ..server.tokens import Caller
from .fabric import Fabric
from .far_app import Calls, fetch
from .joining import Joined, Viewing
from .serving import OFFERING

if TYPE_CHECKING:
    from ..home import Home
    from .fabric import Address


_WITHIN_S = 4.0
_OK, _WARNING, _PROBLEM = "ok", "warning", "problem"
# A part of the reason why there is no connection, and its fix.
_FABRIC_FIXES = (
    ("max_payload", "set max_payload to 262144 or more in the configuration of that server"),
    ("certificate", "use the certificate that it was set up with, or invite the machines again with the new one"),
    ("permission", "give this login the permissions that docs/guides/many-machines.md names"),
    ("too old", "install a newer nats-server, or use `hold fabric`"),
    ("login", "the invitation was taken back or is not known there: invite and join again"),
    ("no tls", "start it with --tls-cert and --tls-key, and invite again"),
)
_FABRIC_FIX = "start it with `hold fabric`, or check the network; every machine connects again by itself"
_NODE_FIXES = {
    "not connected": "run `hold serve --no-listen` there, or wake that machine; its sessions are not affected",
    "no answer": "it may be asleep, stopped or cut off: it reconnects by itself; its sessions are not affected",
}


async def examine(home: Home) -> list[Finding]:
    """Every part that this home has gives at least one finding."""
    viewing, joined = Viewing(home), Joined(home)
    found: list[Finding] = []
    if viewing.address is not None:
        found += await _as_view(viewing, viewing.address)
    if joined.views():
        found += await _as_node(joined, home)
    return found


async def _as_view(viewing: Viewing, address: Address) -> list[Finding]:
    calls = Calls(viewing)
    async with calls.through(address) as fabric:
        found = [await _connected(fabric)]
        if found[0].level == _OK:
            found += await asyncio.gather(*(_node(calls, name) for name in viewing.nodes()))
    return found


async def _connected(fabric: Fabric) -> Finding:
    url = fabric.address.url
    try:
        await asyncio.wait_for(fabric.ready.wait(), _WITHIN_S)
    except TimeoutError:
        why = str(fabric.why)
        fix = next((fix for word, fix in _FABRIC_FIXES if word in why.lower()), _FABRIC_FIX)
        text = f"{url} cannot be used: {why}; sessions here are not affected, other machines are not seen"
        return Finding("fabric", _PROBLEM, text, fix=fix)
    return Finding("fabric", _OK, f"{url} is connected")


async def _node(calls: Calls, name: str) -> Finding:
    try:
        async with asyncio.timeout(_WITHIN_S):
            status, about = await fetch(calls, name, "/v1/info", Caller("doctor", "doctor", "manage", b""))
    except HoldfastError as problem:
        why = str(problem.facts.get("why") or problem.message)
        fix = next((fix for word, fix in _NODE_FIXES.items() if why.startswith(word)), problem.fix)
        is_silent = problem.code == "node-unreachable"
        return Finding("node", _WARNING if is_silent else _PROBLEM, f"{name}: {why}", fix=fix)
    except (TimeoutError, ValueError):
        return Finding("node", _WARNING, f"{name}: no answer", fix=_NODE_FIXES["no answer"])
    if status != 200:
        text = f"{name} answers with status {status}"
        return Finding("node", _PROBLEM, text, fix="see `hold node ls`, and `hold doctor` there")
    scopes = about.get("scopes")
    if isinstance(scopes, list) and "manage" not in scopes:
        most = "control" if "control" in scopes else "observe"
        refused = "starting commands" if most == "control" else "typing, stopping and starting commands"
        text = f"{name} answers; it lets this view {most}: {refused} there is refused, until you `hold node forget` it"
        return Finding("node", _OK, f"{text} and invite it again with another --scope")
    return Finding("node", _OK, f"{name} answers")


async def _as_node(joined: Joined, home: Home) -> list[Finding]:
    found = []
    for address, name in sorted(joined.fabrics(), key=lambda each: each[1]):
        async with Fabric(address, "n", name, lambda *_: None) as fabric:
            found.append(await _connected(fabric))
    if lock_is_free(os.path.join(home.path, "nodes", OFFERING)):
        text = f"no server of this home is running: views cannot reach it as the node {joined.name}"
        found.append(Finding("node", _PROBLEM, text, fix="run `hold serve --no-listen`"))
    may = [f"{view.name} may {view.scope} this home, the node {view.node}" for view in joined.views().values()]
    return [*found, *(Finding("view", _OK, text) for text in may)]
