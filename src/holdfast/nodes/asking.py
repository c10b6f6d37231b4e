"""The requests of one command, over a connection of its own: `hold ls --nodes`, `hold node ls` and `hold doctor`."""

from __future__ import annotations

import asyncio
import logging
import os
from contextlib import AsyncExitStack, suppress
from typing import TYPE_CHECKING
from urllib.parse import urlencode

from ..core.records import lock_is_free
from ..errors import BadArgument, DamagedRecord, HoldfastError, NodeTwice
from ..model import Finding
from ..server.tokens import Caller
from .fabric import TRIAL, Fabric, Unfit, credentials_in
from .far_app import Calls, fetch
from .following import NEWEST, WHY_CHARACTERS, far_shots
from .joining import Joined, Viewing, invite
from .rows import clean
from .serving import OFFERING

if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

    from ..home import Home
    from .conversation import Conversation
    from .fabric import Address, GivenAddress
    from .joining import Invitation, View
    from .rows import FarShot


# A node has this long to open an exchange, and this long to answer. Asking a thousand nodes takes longer: only so many
# exchanges are opened, and so many answers read, at a time.
_ANSWER_S = 2.0
_OPENING, _READING = 128, 8
_WITHIN_S = 4.0
_OK, _WARNING, _PROBLEM = "ok", "warning", "problem"
_NODE_FIXES = {
    "not connected": "run `hold serve --no-listen` there, or wake that machine; its sessions are not affected",
    "no answer": "it may be asleep, stopped or cut off: it reconnects by itself; its sessions are not affected",
}


# Lists.


async def sessions(
    viewing: Viewing, names: list[str], wanted: dict[str, Any], *, all: bool
) -> tuple[list[FarShot], list[str], dict[str, str]]:
    """The matching sessions of these nodes, oldest first; the nodes that have more of them; and for each node that did
    not answer, the reason."""
    given = {key: value for key, value in wanted.items() if value} | {"limit": NEWEST}
    # A page is limited: ask for the newest, and for those that run.
    queries = [given] if "state" in given else [given, {**given, "state": "running"}]
    found: list[FarShot] = []
    cut: list[str] = []
    silent: dict[str, str] = {}
    for node, pages in (await _ask_all(viewing, names, *(urlencode(query, doseq=True) for query in queries))).items():
        if isinstance(pages, str):
            silent[node] = pages
        else:
            found += {shot.id: shot for page in pages for shot in far_shots(node, page)}.values()
            if pages[0 if all else -1].get("next") is not None:
                cut.append(node)
    found.sort(key=lambda shot: (shot.created_at or "", shot.id))
    return found, cut, silent


async def nodes(viewing: Viewing) -> list[dict[str, Any]]:
    """The nodes of this view, and whether each answers."""
    rows = []
    known = viewing.nodes()
    for name, answer in (await _ask_all(viewing, list(known), "count=true&limit=1")).items():
        row: dict[str, Any] = {"node": name, "fingerprint": viewing.fingerprint(known[name])}
        if isinstance(answer, str):
            row |= {"state": "unreachable", "why": answer, "sessions": None}
        else:
            row |= {"state": "connected", "why": None, "sessions": answer[0].get("count")}
        rows.append(row)
    return rows


async def views(joined: Joined) -> list[dict[str, str | None]]:
    """The views of this home, and why each cannot see this home, if that is known here."""
    return await asyncio.gather(*(_of_view(joined, view) for view in joined.views().values()))


async def _of_view(joined: Joined, view: View) -> dict[str, str | None]:
    problem = await _tried(view.fabric, "n", view.node, _ANSWER_S)
    copied = "another machine has the key of this home" if view.is_copied else None
    said = copied if problem is None else f"no fabric: {problem}"
    return {"view": view.name, "scope": view.scope, "fingerprint": joined.fingerprint(view), "why": said}


async def _tried(address: Address, side: str, name: str, within_s: float) -> Unfit | None:
    """Why a node or a view cannot use this fabric."""
    async with Fabric(address, side, name, lambda *_: None, exchange=TRIAL) as fabric:
        return await fabric.fault(within_s)


async def _ask_all(viewing: Viewing, names: list[str], *queries: str) -> dict[str, list[dict[str, Any]] | str]:
    """The answers of each node to these queries for sessions, or the reason why there is no answer."""
    address = viewing.address
    if not names:
        return {}
    if address is None:
        return dict.fromkeys(names, "no fabric")
    # Each answer gives the reason; the log would repeat it.
    logging.getLogger("holdfast.nodes").setLevel(logging.ERROR)
    calls = Calls(viewing)
    async with calls.through(address) as fabric:
        if (why := await fabric.fault(_ANSWER_S)) is not None:
            return dict.fromkeys(names, f"no fabric: {why}")
        opening, reading = asyncio.Semaphore(_OPENING), asyncio.Semaphore(_READING)
        answers = await asyncio.gather(*(_ask(calls, name, queries, opening, reading) for name in names))
    return dict(zip(names, answers, strict=True))


async def _ask(
    calls: Calls, name: str, queries: Iterable[str], opening: asyncio.Semaphore, reading: asyncio.Semaphore
) -> list[dict[str, Any]] | str:
    caller = Caller("cli", "cli", "manage", b"")
    try:
        async with AsyncExitStack() as turn:
            async with opening:
                async with asyncio.timeout(_ANSWER_S):
                    talk: Conversation | None = await calls.open(name)
                await turn.enter_async_context(reading)
            if talk is not None and talk.is_over:
                talk = None  # its turn came late, behind slow nodes: the node has ended it, and another is opened
            pages = []
            async with asyncio.timeout(_ANSWER_S):
                for query in queries:
                    status, page = await fetch(calls, name, "/v1/sessions", caller, query, talk)
                    if status != 200:
                        return clean(str(page.get("detail") or f"it answers with status {status}")[:WHY_CHARACTERS])
                    pages.append(page)
                    talk = None
            return pages
    except HoldfastError as problem:
        return _why(problem)
    except TimeoutError:
        return "no answer"
    except (TypeError, ValueError, RecursionError):
        return "its answer is invalid"


def _why(problem: HoldfastError) -> str:
    return clean(str(problem.facts.get("why") or problem.message)[:WHY_CHARACTERS])


# `hold node invite` through a NATS server that `hold fabric` did not start.


async def invitation(viewing: Viewing, given: GivenAddress, node: str, scope: str, path: str | None) -> Invitation:
    """With the credentials of this file. BadArgument unless they and those of this home have their permissions."""
    if path is None:
        fix = (
            f"give --credentials FILE: of a user that may publish {given.subject('v', '>')} and"
            f" subscribe {given.subject('n', node, '>')}; the user of this home may publish {given.subject('n', '>')}"
            f" and subscribe {given.subject('v', viewing.name, '>')}"
        )
        raise BadArgument("credentials", f"{given.url} has logins of its own", fix)
    try:
        offered = invite(viewing, given, node, scope).with_credentials(credentials_in(path))
    except Unfit as problem:
        raise BadArgument("credentials", str(problem), f"give the file that has the login of {node}") from None
    logging.getLogger("holdfast.nodes").setLevel(logging.ERROR)
    for whose, address, side, name in (("this home", given, "v", viewing.name), (node, offered.fabric, "n", node)):
        unfit = await _tried(address, side, name, _WITHIN_S)
        if unfit is not None:
            raise BadArgument("credentials", f"{given.url} cannot be used by {whose}: {unfit}", unfit.fix)
    return offered


# `hold doctor`.


async def examine(home: Home) -> list[Finding]:
    """Every part that this home takes part in gives at least one finding."""
    found: list[Finding] = []
    for examined in (_as_view, _as_node):
        try:
            found += await examined(home)
        except DamagedRecord as problem:
            found.append(Finding("node", _PROBLEM, problem.message, fix=problem.fix))
    return found


async def _as_view(home: Home) -> list[Finding]:
    viewing = Viewing(home)
    address = viewing.address
    if address is None:
        return []
    calls = Calls(viewing)
    async with calls.through(address) as fabric:
        found = [_connected(address, await fabric.fault(_WITHIN_S))]
        if found[0].level == _OK:
            found += await asyncio.gather(*(_node(calls, name) for name in viewing.nodes()))
    return found


def _connected(address: Address, problem: Unfit | None) -> Finding:
    if problem is None:
        return Finding("fabric", _OK, f"{address.url} is connected")
    text = f"{address.url} cannot be used: {problem}; sessions here are not affected, other machines are not seen"
    return Finding("fabric", _PROBLEM, text, fix=problem.fix)


async def _node(calls: Calls, name: str) -> Finding:
    try:
        caller = Caller("doctor", "doctor", "manage", b"")
        async with asyncio.timeout(_WITHIN_S):
            # If that home was copied, the next handshake tells both machines.
            with suppress(NodeTwice):
                await fetch(calls, name, "/v1/info", caller)
            status, about = await fetch(calls, name, "/v1/info", caller)
    except HoldfastError as problem:
        why = _why(problem)
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
        text = f"{name} answers; it lets this view {most}: {refused} there is refused"
        return Finding("node", _OK, f"{text}, until `hold node trust VIEW --scope ...` there allows more")
    return Finding("node", _OK, f"{name} answers")


async def _as_node(home: Home) -> list[Finding]:
    joined = Joined(home)
    found = []
    for address, name in sorted(joined.fabrics(), key=lambda each: each[1]):
        found.append(_connected(address, await _tried(address, "n", name, _WITHIN_S)))
    if joined.views() and lock_is_free(os.path.join(home.path, "nodes", OFFERING)):
        text = f"no server of this home is running: views cannot reach it as the node {joined.name}"
        found.append(Finding("node", _PROBLEM, text, fix="run `hold serve --no-listen`"))
    for view in joined.views().values():
        if view.is_copied:
            text = f"another machine answers with the key of this home, the view {view.name} says: the home was copied"
            found.append(Finding("node", _PROBLEM, text, fix=NodeTwice.fix))
        of = f", sessions of {view.owner} alone" if view.owner else ""
        text = f"{view.name} may {view.scope} this home, the node {view.node}{of}"
        found.append(Finding("view", _OK, f"{text}; `hold node revoke {view.name}` ends it"))
    return found
