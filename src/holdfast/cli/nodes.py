"""`hold node` and `hold fabric`: other machines."""

from __future__ import annotations

import signal
import sys

from ..errors import BadArgument, Unsupported
from .output import note, printable, say, say_json, style, table
from .parsing import Namespace, Parser, add_json, pair, port, usage

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ..home import Home
    from ..nodes.rows import FarShot


NODE_HELP = """\
Sessions of other machines. A node is a home on another machine; this home is a view of it.

  ls               the nodes of this view and whether each answers; the views of this node
  invite NAME      print one line for another machine, and wait until it has joined (15 minutes)
  join CODE        let the view that printed CODE see this home
  trust VIEW       set what a view may do in this home, with --scope
  revoke VIEW      a view may no longer see this home; what it has open ends
  forget NAME      forget a node
"""

NODE_USAGE = (
    "ls | invite NAME | join CODE | trust VIEW | revoke VIEW | forget NAME   [--scope observe|control|manage]"
    " [--credentials FILE] [--owner KEY] [--label K=V]"
)
NODE_EXAMPLES = """
hold node invite build-box                   on your machine, beside `hold fabric`
hold node join CODE                          on build-box, then `hold serve --no-listen`
hold node ls
hold node trust VIEW --scope observe         on build-box: that view may only read from now on
"""
# What each takes.
_ACTIONS = {
    "ls": ("json",),
    "invite": ("name", "scope", "credentials"),
    "join": ("name", "scope", "owner", "label"),
    "trust": ("name", "scope"),
    "revoke": ("name",),
    "forget": ("name",),
}
_TAKEN = {"name": "name"} | {option: f"--{option}" for option in ("scope", "credentials", "owner", "label", "json")}
# Of nodes that did not answer for one reason, or that have more sessions than a list, these many are named.
_NAMED = 3


def node_arrange(parser: Parser) -> None:
    parser.add_argument("action", choices=tuple(_ACTIONS), help="what to do")
    parser.add_argument("name", nargs="?", metavar="NAME", help="the name of a node or view, or the code")
    parser.add_argument(
        "--scope",
        choices=("observe", "control", "manage"),
        help="invite, join, trust: what the view may do on the node (invite: default control; manage also starts"
        " commands; join: no more than the invitation says)",
    )
    parser.add_argument(
        "--credentials", metavar="FILE", help="invite: the login of the machine, on a NATS server that is in nodes.url"
    )
    parser.add_argument("--owner", metavar="KEY", help="join: only sessions of this owner")
    parser.add_argument(
        "--label", action="append", type=pair("--label"), metavar="K=V", help="join: only sessions with this label"
    )
    add_json(parser, "the nodes and views")


def node_main(args: Namespace) -> int:
    import asyncio

    from ..home import Home
    from .host import settings

    takes = _ACTIONS[args.action]
    for option, word in _TAKEN.items():
        if getattr(args, option) and option not in takes:
            raise usage(f"{args.action} takes no {word}", "hold node")
    if "name" in takes and not args.name:
        raise usage(f"{args.action} needs a name", "hold node")
    if args.action == "trust" and args.scope is None:
        raise usage("trust needs --scope", "hold node")
    settings(need_config=args.action == "invite")
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
        labels = dict(args.label or ())
        view, fingerprint = await joining.join(joined, args.name, args.scope, args.owner, labels)
        say(f"joined as {joined.name}; the view is {view}, fingerprint {fingerprint}")
        note("run `hold serve --no-listen` here, or keep a running `hold serve`, so that this home can be seen")
        may = joined.views()[view].scope
        note(f"that view may {may} this home; `hold node trust {view} --scope ...` changes that")
    elif args.action == "trust":
        joining.Joined(home).trust(args.name, args.scope)
        revoked = [] if args.scope == "manage" else _revoke_tokens(home, args.name)
        _audit(home, "view_trusted", view=args.name, scope=args.scope, tokens=revoked)
    elif args.action == "revoke":
        joining.Joined(home).revoke(args.name)
        _audit(home, "view_revoked", view=args.name, tokens=_revoke_tokens(home, args.name))
    elif args.action == "forget":
        from ..nodes.own_server import Logins

        joining.Viewing(home).forget(args.name)
        Logins(home).forget(args.name)
        _audit(home, "node_forgotten", node=args.name)
    else:
        await _list(args, home)
    return 0


def _audit(home: Home, action: str, **facts: Any) -> None:
    from ..server.audit import Audit
    from .host import author

    Audit(_of_server(home)).note(action, by=author(), **facts)


def _revoke_tokens(home: Home, view: str) -> list[str]:
    """Only `manage` makes tokens: those of a view that has it no longer end with it. Returns their ids."""
    from ..nodes.joining import caller_id
    from ..server.tokens import Tokens

    return Tokens(None, _of_server(home)).revoke_made_by(caller_id(view))


def _of_server(home: Home) -> str:
    import os

    from ..serving.listener import token_path

    return os.path.dirname(token_path(home, ""))


async def _invite(args: Namespace, home: Home) -> int:
    from ..nodes import asking, joining
    from ..nodes.own_server import Logins

    for number in (signal.SIGTERM, signal.SIGHUP):
        # As Ctrl-C: the login of the invitation is removed.
        signal.signal(number, signal.getsignal(signal.SIGINT))
    viewing, logins, login = joining.Viewing(home), Logins(home), None
    address, scope = viewing.address, args.scope or "control"
    joining.check_name(args.name)
    if viewing.given is not None:
        invitation = await asking.invitation(viewing, viewing.given, args.name, scope, args.credentials)
    elif args.credentials is not None:
        fix = "set it, and nodes.credentials; or use `hold fabric`, which makes the login itself"
        raise BadArgument("credentials", "the setting nodes.url is missing", fix)
    elif address is None or not logins.is_running:
        raise BadArgument("fabric", "no fabric of this home is running", "start one with `hold fabric`")
    else:
        invitation = joining.invite(viewing, address, args.name, scope)
        login = logins.invite(args.name, invitation.exchange, viewing.name)
        invitation = invitation.with_login(*login)
    assert address is not None

    def ready() -> None:
        say(f"hold node join {invitation.text()}")
        sys.stdout.flush()
        note(f"waiting until {args.name} has joined with this line, at most {joining.INVITATION_S / 60:g} minutes")
        if address.is_local:
            elsewhere = "`hold fabric --help`" if login else "another address in nodes.url"
            note(f"this fabric can be reached from this machine alone; for others: {elsewhere}")

    def grant() -> None:
        if login is not None:
            logins.grant(login[0])

    try:
        fingerprint = await joining.wait_for_join(viewing, address, invitation, ready, grant)
    except TimeoutError:
        raise BadArgument("invite", f"{args.name} did not join within 15 minutes", "invite it again") from None
    finally:
        if login is not None:
            logins.withdraw_if_pending(login[0])
    say(f"{args.name} joined, fingerprint {fingerprint}")
    return 0


async def _list(args: Namespace, home: Home) -> None:
    from ..config import load
    from ..nodes import asking
    from ..nodes.joining import Joined, Viewing

    joined = Joined(home)
    rows, views = await asking.nodes(Viewing(home)), await asking.views(joined)
    if args.json:
        say_json({"name": joined.name, "nodes": rows, "views": views})
        return
    if rows:
        shown = [{**row, "sessions": "-" if row["sessions"] is None else str(row["sessions"])} for row in rows]
        columns = ("node", "state", "sessions", "fingerprint", "why")
        cells = [[(row[key] or "", "") for key in columns] for row in shown]
        say(table(("NODE", "STATE", "SESSIONS", "FINGERPRINT", "WHY"), cells, style(load())))
    if views:
        cells = [[(each[key] or "", "") for key in ("view", "scope", "fingerprint", "why")] for each in views]
        say(table((f"VIEW OF {joined.name}", "SCOPE", "FINGERPRINT", "WHY"), cells, style(load())))
    if not rows and not views:
        note("this home has no nodes and no views: see `hold node --help`")


def sessions_of_nodes(
    name: str | None, query: dict[str, Any], *, all: bool
) -> tuple[list[FarShot], list[str], dict[str, str]]:
    """Sessions of one node or of all, the nodes that have more of them, and for each node that did not answer, why."""
    import asyncio

    from ..errors import NoSuchNode
    from ..home import Home

    try:
        from ..nodes import asking
        from ..nodes.joining import Viewing
    except ImportError as problem:
        raise _without_nodes(problem.name) from None
    viewing = Viewing(Home())
    known = list(viewing.nodes())
    if name is not None and name not in known:
        raise NoSuchNode(name)
    return asyncio.run(asking.sessions(viewing, known if name is None else [name], query, all=all))


def note_cut(cut: list[str]) -> None:
    """Name the nodes that have more sessions than the list."""
    names = ", ".join(cut[:_NAMED]) + (f" and {len(cut) - _NAMED} more" if len(cut) > _NAMED else "")
    verb = "has" if len(cut) == 1 else "have"
    note(
        f"{names} {verb} more sessions than these: narrow the list with --status, --owner, --label, --name or --search"
    )


def note_silent(silent: dict[str, str]) -> None:
    """Name the nodes that did not answer; many of them by reason."""
    from ..nodes.following import by_reason

    if len(silent) <= _NAMED:
        for node, why in silent.items():
            note(f"{node} did not answer: {printable(why)}")
        return
    for why, names in by_reason(silent.items()).items():
        more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
        note(f"{', '.join(names[:_NAMED])}{more} did not answer: {printable(why)}")
    note(f"{len(silent)} nodes did not answer; `hold node ls` names each")


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
    parser.add_argument("--port", type=port(1), default=_PORT, metavar="N", help=f"the port (default {_PORT})")
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
