"""An MCP server: the sessions of one agent as tools and resources, for any client of the protocol.

Without --http it speaks on its input and output, as clients start it. Commands outlive the server: killed and started
again for the same owner, it shows the same sessions, and what was not acknowledged is told again.
"""

from __future__ import annotations

import os
import signal

from .output import note, say
from .parsing import Parser

TYPE_CHECKING = False
if TYPE_CHECKING:
    from argparse import Namespace

    from ..errors import Unsupported
    from ..home import Home

USAGE = "[--toolset NAME] [--owner NAME] [--redact] [--http [--host ADDRESS] [--port N]] [--print-config CLIENT]"
EXAMPLES = """
hold mcp --print-config claude-code    what to tell a client
hold mcp                               as a client starts it
hold mcp --toolset hermes --owner bot
hold mcp --http --port 8765            for several clients, with a token
"""
_TOOLSETS = ("native", "dominds", "evva", "hermes", "openclaw")
_PORT = 8765


def arrange(parser: Parser) -> None:
    parser.add_argument("--toolset", default="native", choices=_TOOLSETS, help="the family of tools (default native)")
    parser.add_argument("--owner", metavar="NAME", help="whose sessions they are (default: one for this directory)")
    parser.add_argument("--http", action="store_true", help="speak streamable HTTP instead of stdio")
    parser.add_argument("--host", default="127.0.0.1", metavar="ADDRESS", help="a loopback address (default 127.0.0.1)")
    parser.add_argument("--port", type=int, default=_PORT, metavar="N", help=f"0 takes a free one (default {_PORT})")
    parser.add_argument("--token-file", metavar="FILE", help="a token other than the home's own")
    parser.add_argument(
        "--allow-host", action="append", default=[], metavar="HOST:PORT", help="one more Host to accept"
    )
    parser.add_argument("--allow-origin", action="append", default=[], metavar="URL", help="one more to accept")
    parser.add_argument("--redact", action="store_true", help="take secrets out of what the tools return")
    parser.add_argument("--print-config", metavar="CLIENT", help="print what to write into a client's configuration")


def main(args: Namespace) -> int:
    from ..tools.mcp import address

    owner = args.owner or f"mcp:{os.getcwd()}"
    token = ""
    if args.http:
        token = address.read_token(args.token_file) if args.token_file else address.token_of(_home())
    if args.print_config:
        from importlib.util import find_spec

        from ..config import load
        from ..tools.mcp import clients

        # What is printed would be of no use where the server cannot start.
        load()
        if find_spec("mcp") is None:
            raise _without("mcp")

        url = address.address(args.host, args.port) if args.http else None
        command = clients.command(args.toolset, args.owner, redact=args.redact)
        say(clients.config(args.print_config, command, _whereabouts(), url=url, token=token))
        note(clients.named(args.print_config).then)
        return 0
    try:
        from ..tools.mcp import serve
    except ImportError as problem:
        raise _without(problem.name) from None
    import asyncio

    from .door import author

    if not args.http:
        asyncio.run(serve.over_stdio(args.toolset, owner, author("mcp"), redact=args.redact))
        return 0

    def listening(url: str) -> None:
        port = url.rpartition(":")[2].partition("/")[0]
        note(f"{args.toolset} for {owner} on {url}")
        note(f"`hold mcp --http --port {port} --print-config CLIENT` says how to connect")

    work = serve.over_http(
        args.toolset,
        owner,
        author("mcp"),
        host=args.host,
        port=args.port,
        token=token,
        hosts=args.allow_host,
        origins=args.allow_origin,
        redact=args.redact,
        listening=listening,
    )
    if asyncio.run(work) == signal.SIGINT:
        note("left; the sessions go on")
    return 0


def _without(package: str | None) -> Unsupported:
    from ..errors import Unsupported

    missing = Unsupported(f"an MCP server without the package {package}")
    missing.fix = "`pip install 'holdfast[mcp]'`"
    return missing


def _whereabouts() -> dict[str, str]:
    """Where home, configuration and sockets are, for a client that has another environment than we."""
    from ..config import config_path
    from ..home import Home

    found = {"HOLDFAST_HOME": Home().path}
    file = config_path(os.environ)
    # One that is named must be there.
    if os.environ.get("HOLDFAST_CONFIG") or os.path.exists(file):
        found["HOLDFAST_CONFIG"] = file
    return found | {name: os.environ[name] for name in ("XDG_RUNTIME_DIR", "TMPDIR") if os.environ.get(name)}


def _home() -> Home:
    from ..home import Home

    home = Home()
    home.create()
    return home
