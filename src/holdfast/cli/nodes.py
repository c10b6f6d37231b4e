"""`hold node` and `hold fabric`: other machines."""

from __future__ import annotations

import sys

from ..errors import BadArgument, Unsupported
from .output import note, say, say_json, style, table
from .parsing import Namespace, Parser, add_json, usage

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

    from ..home import Home
    from ..nodes.far_app import Calls
    from ..nodes.joining import Viewing
    from ..nodes.rows import FarShot


NODE_HELP = """\
Sessions of other machines. A node is a home on another machine; this home is a view of it.

  ls               the nodes of this view and whether each answers; the views of this node
  invite NAME      print one line for another machine, and wait until it has joined (15 minutes)
  join CODE        let the view that printed CODE see this home
  revoke VIEW      a view may no longer see this home; what it has open ends
  forget NAME      forget a node
"""

NODE_USAGE = "ls | invite NAME [--scope observe|control|manage] | join CODE | revoke VIEW | forget NAME"
NODE_EXAMPLES = """
hold node invite build-box                   on your machine, beside `hold fabric`
hold node join CODE                          on build-box, then `hold serve --no-listen`
hold node ls
"""
_ACTIONS = ("ls", "invite", "join", "revoke", "forget", "link")
_LS_S = 2.0


def node_arrange(parser: Parser) -> None:
    parser.add_argument("action", choices=_ACTIONS[:-1], help="what to do")
    parser.add_argument("name", nargs="?", metavar="NAME", help="the name of a node or view, or the code")
    parser.add_argument(
        "--scope",
        choices=("observe", "control", "manage"),
        default="control",
        help="what this view may do there (default control; manage also starts commands)",
    )
    parser.add_argument("--owner", metavar="KEY", help="join: only sessions of this owner")
    add_json(parser, "the nodes and views")


def node_main(args: Namespace) -> int:
    import asyncio

    from ..home import Home

    if args.action != "ls" and not args.name:
        raise usage(f"{args.action} needs a name", "hold node")
    home = Home()
    home.create()
    try:
        return asyncio.run(_node(args, home))
    except ImportError as problem:
        raise _without_nodes(problem.name) from None


async def _node(args: Namespace, home: Home) -> int:
    from ..nodes import joining

    if args.action == "invite":
        return await _invite(args, home)
    if args.action == "join":
        joined = joining.Joined(home)
        view, fingerprint = await joining.join(joined, args.name, args.owner)
        say(f"joined as {joined.name}; the view is {view}, fingerprint {fingerprint}")
        note("run `hold serve --no-listen` here, or keep a running `hold serve`, so that this home can be seen")
    elif args.action == "revoke":
        joining.Joined(home).revoke(args.name)
        _audit(home, "view_revoked", view=args.name)
    elif args.action == "forget":
        from ..nodes.own_server import Logins

        joining.Viewing(home).forget(args.name)
        Logins(home).forget(args.name)
        _audit(home, "node_forgotten", node=args.name)
    else:
        await _list(args, home)
    return 0


def _audit(home: Home, action: str, **facts: Any) -> None:
    import os

    from ..server.audit import Audit
    from ..serving.listener import token_path
    from .host import author

    Audit(os.path.dirname(token_path(home, ""))).note(action, by=author(), **facts)


async def _invite(args: Namespace, home: Home) -> int:
    from ..nodes import joining
    from ..nodes.own_server import Logins

    viewing, logins = joining.Viewing(home), Logins(home)
    address = viewing.address
    if address is None or not logins.is_running:
        raise BadArgument("fabric", "no fabric of this home is running", "start one with `hold fabric`")
    joining.check_name(args.name)
    invitation = joining.invite(viewing, address, args.name, args.scope)
    login = logins.invite(args.name, invitation.exchange, viewing.name)
    invitation = invitation.with_login(*login)

    def ready() -> None:
        say(f"hold node join {invitation.text()}")
        sys.stdout.flush()

    def grant() -> None:
        logins.grant(login[0])

    try:
        fingerprint = await joining.wait_for_join(viewing, address, invitation, ready, grant)
    except TimeoutError:
        raise BadArgument("invite", f"{args.name} did not join within 15 minutes", "invite it again") from None
    finally:
        logins.withdraw_if_pending(login[0])
    say(f"{args.name} joined, fingerprint {fingerprint}")
    return 0


async def _list(args: Namespace, home: Home) -> None:
    from ..config import load
    from ..nodes.joining import Joined, Viewing

    viewing, joined = Viewing(home), Joined(home)
    known = viewing.nodes()
    rows: list[dict[str, Any]] = []
    for name, answer in (await _ask_all(viewing, list(known), "count=true&limit=1")).items():
        row: dict[str, Any] = {"node": name, "fingerprint": viewing.fingerprint(known[name])}
        if isinstance(answer, str):
            rows.append({**row, "state": "unreachable", "why": answer, "sessions": None})
        else:
            rows.append({**row, "state": "connected", "why": None, "sessions": answer.get("count")})
    views = [
        {"view": view.name, "scope": view.scope, "fingerprint": joined.fingerprint(view)}
        for view in joined.views().values()
    ]
    if args.json:
        say_json({"name": joined.name, "nodes": rows, "views": views})
        return
    if rows:
        cells = [
            [(str(row[key] or ""), "") for key in ("node", "state", "sessions", "fingerprint", "why")] for row in rows
        ]
        say(table(("NODE", "STATE", "SESSIONS", "FINGERPRINT", "WHY"), cells, style(load())))
    if views:
        cells = [[(each[key], "") for key in ("view", "scope", "fingerprint")] for each in views]
        say(table((f"VIEW OF {joined.name}", "SCOPE", "FINGERPRINT"), cells, style(load())))
    if not rows and not views:
        note("this home has no nodes and no views: see `hold node --help`")


def sessions_of_nodes(name: str | None, query: dict[str, Any]) -> tuple[list[FarShot], dict[str, str]]:
    """Sessions of one node or of all, and for each node that did not answer, why."""
    import asyncio
    from urllib.parse import urlencode

    from ..errors import NoSuchNode
    from ..home import Home

    try:
        from ..nodes.joining import Viewing
        from ..nodes.rows import far_shot
    except ImportError as problem:
        raise _without_nodes(problem.name) from None
    viewing = Viewing(Home())
    known = list(viewing.nodes())
    if name is not None and name not in known:
        raise NoSuchNode(name)
    given = {key: value for key, value in query.items() if value}
    wanted = known if name is None else [name]
    # A page is limited: ask for the newest, and for those that run.
    pages = [{**given, "limit": 200}, *([] if "state" in given else [{**given, "limit": 200, "state": "running"}])]
    answers = asyncio.run(_ask_all(viewing, wanted, *(urlencode(page, doseq=True) for page in pages)))
    found: list[FarShot] = []
    silent: dict[str, str] = {}
    for node, answer in answers.items():
        if isinstance(answer, str):
            silent[node] = answer
        else:
            shots = [far_shot(node, row) for row in answer.get("items") or ()]
            found += {shot.id: shot for shot in shots if shot is not None}.values()
    found.sort(key=lambda shot: (shot.created_at or "", shot.id))
    return found, silent


async def _ask_all(viewing: Viewing, names: list[str], *queries: str) -> dict[str, dict[str, Any] | str]:
    """The answers of each node to these queries for sessions, as one; or why there is none. All nodes together have
    `_LS_S`."""
    import asyncio

    from ..nodes.far_app import Calls

    address = viewing.address
    if not names:
        return {}
    if address is None:
        return dict.fromkeys(names, "no fabric")
    calls = Calls(viewing)
    until = asyncio.get_running_loop().time() + _LS_S
    async with calls.through(address) as fabric:
        try:
            async with asyncio.timeout_at(until):
                await fabric.ready.wait()
        except TimeoutError:
            return dict.fromkeys(names, f"no fabric: {fabric.why}")
        answers = await asyncio.gather(*(_ask(calls, name, queries, until) for name in names))
    return dict(zip(names, answers, strict=True))


async def _ask(calls: Calls, name: str, queries: Iterable[str], until: float) -> dict[str, Any] | str:
    import asyncio

    from ..errors import HoldfastError
    from ..nodes.far_app import fetch
    from ..server.tokens import Caller

    try:
        async with asyncio.timeout_at(until):
            answer: dict[str, Any] = {}
            for query in queries:
                status, page = await fetch(calls, name, "/v1/sessions", Caller("cli", "cli", "manage", b""), query)
                if status != 200:
                    return str(page.get("detail") or f"it answers with status {status}")
                answer = {**page, "items": [*answer.get("items", ()), *(page.get("items") or ())]}
    except HoldfastError as problem:
        return str(problem.facts.get("why") or problem.message)
    except TimeoutError:
        return "no answer"
    except (TypeError, ValueError):
        return "its answer is invalid"
    return answer


FABRIC_HELP = """\
Run a NATS server through which machines see each other's sessions.

It has one login for this home and one for each machine that `hold node invite` let in, each with no more permissions
than it needs. It carries sealed messages, stores nothing and can read nothing. For other machines it needs TLS.
"""

FABRIC_USAGE = "[--bind ADDRESS] [--port N] [--host NAME] [--tls-cert FILE --tls-key FILE]"
FABRIC_EXAMPLES = """
hold fabric
hold fabric --bind 0.0.0.0 --host laptop.example --tls-cert cert.pem --tls-key key.pem
"""
_PORT = 4654


def fabric_arrange(parser: Parser) -> None:
    parser.add_argument("--bind", default="127.0.0.1", metavar="ADDRESS", help="the address (default 127.0.0.1)")
    parser.add_argument("--port", type=int, default=_PORT, metavar="N", help=f"the port (default {_PORT})")
    parser.add_argument("--host", metavar="NAME", help="the name by which other machines reach it")
    parser.add_argument("--tls-cert", metavar="FILE", help="a certificate in PEM; required for other machines")
    parser.add_argument("--tls-key", metavar="FILE", help="its key")


def fabric_main(args: Namespace) -> int:
    import asyncio

    from ..home import Home

    try:
        from ..nodes import own_server
    except ImportError as problem:
        raise _without_nodes(problem.name) from None
    if (args.tls_cert is None) != (args.tls_key is None):
        raise usage("a certificate needs its key, and a key its certificate", "hold fabric")
    home = Home()
    home.create()

    def started(url: str) -> None:
        say(f"{url} connects machines; invite one with `hold node invite NAME`")
        sys.stdout.flush()

    tls = (args.tls_cert, args.tls_key) if args.tls_cert else None
    return asyncio.run(own_server.run(home, started, bind=args.bind, port=args.port, host=args.host, tls=tls))


def _without_nodes(name: str | None) -> Unsupported:
    missing = Unsupported(f"other machines without the package {name}")
    missing.fix = "`pip install 'holdfast[nodes]'`"
    return missing
