"""`hold serve`, `hold open`, `hold mcp` and `hold hook`."""

from __future__ import annotations

import os
import signal
import sys

from .output import note, say
from .parsing import Namespace, Parser, port

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..errors import Unsupported
    from ..home import Home
    from ..tools.mcp.clients import Hooks


SERVE_HELP = """\
Run a server: sessions over HTTP, server-sent events and WebSocket, with tokens.

Without a certificate it listens only on this machine. Every request needs a token. The home's token is created at the
first start and may do everything, including the creation of tokens that may do less. The printed address has a code
that is good for one login; `hold open` prints another. Stopping the server neither stops nor changes a session.
"""

SERVE_USAGE = "[--bind ADDRESS] [--port N] [--unix PATH] [--tls-cert FILE --tls-key FILE] [OPTION...]"
SERVE_EXAMPLES = """
hold serve
hold serve --port 0                          any free port
hold serve --unix ~/.hold/serve.sock --public-url http://localhost:8000
                                             for `ssh -L 8000:/home/me/.hold/serve.sock host`
hold serve --bind 0.0.0.0 --tls-cert cert.pem --tls-key key.pem --host-name hold.example
hold serve --print-unit > ~/.config/systemd/user/holdfast.service
"""
_PORT = 4653


def serve_arrange(parser: Parser) -> None:
    parser.add_argument(
        "--bind", default="127.0.0.1", metavar="ADDRESS", help="the address to listen on (default 127.0.0.1)"
    )
    parser.add_argument(
        "--port", type=port(), default=_PORT, metavar="N", help=f"the port; 0 takes a free one (default {_PORT})"
    )
    parser.add_argument("--unix", metavar="PATH", help="listen on a unix socket instead, in a directory of your own")
    parser.add_argument("--tls-cert", metavar="FILE", help="a certificate in PEM; required for other machines")
    parser.add_argument("--tls-key", metavar="FILE", help="its key")
    parser.add_argument(
        "--host-name", action="append", default=[], metavar="NAME", help="an additional name of the server"
    )
    parser.add_argument(
        "--allow-origin", action="append", default=[], metavar="URL", help="allow requests from pages of this origin"
    )
    parser.add_argument("--public-url", metavar="URL", help="its address behind a forwarder or proxy")
    parser.add_argument(
        "--trusted-proxy",
        action="append",
        default=[],
        metavar="CIDR",
        help="a proxy whose Forwarded or X-Forwarded-For is used; `unix` for one on the unix socket",
    )
    parser.add_argument("--no-listen", action="store_true", help="answer only through the fabric (`hold node join`)")
    parser.add_argument("--verbose", action="store_true", help="write a line for each request to standard error")
    parser.add_argument("--open", action="store_true", help="open the page in a browser")
    parser.add_argument("--print-unit", action="store_true", help="print a systemd user unit, and do not serve")


def serve_main(args: Namespace) -> int:
    import asyncio

    from ..home import Home

    if args.print_unit:
        say(_unit())
        return 0
    home = Home()
    if args.no_listen and not os.path.exists(os.path.join(home.path, "nodes", "joined.json")):
        from ..errors import BadArgument

        raise BadArgument("--no-listen", "this home has not joined a fabric", "`hold node join CODE` first")
    try:
        from ..server import listen, serve
        from ..server.gate import ACCESS_LOG
    except ImportError as problem:
        raise _without(problem.name, "server") from None
    if args.verbose:
        import logging

        access = logging.getLogger(ACCESS_LOG)
        access.addHandler(logging.StreamHandler())
        access.setLevel(logging.INFO)
    where = listen.ListenAddress(
        args.bind,
        args.port,
        args.unix,
        args.tls_cert,
        args.tls_key,
        tuple(args.host_name),
        tuple(args.allow_origin),
        args.public_url,
        tuple(args.trusted_proxy),
        args.no_listen,
    )

    def started(server: serve.Started) -> None:
        if args.no_listen:
            say("this home can be reached only through its fabric")
            sys.stdout.flush()
            return
        # A code is good for one login: the address can be opened once.
        page = "" if server.url.startswith("unix:") else f"/#code={server.code}"
        words = f"programs send `Authorization: Bearer hf_home_$(cat {server.token_path})`"
        say(f"{server.url}{page} serves this home; {words}")
        # A program that starts us waits for this line.
        sys.stdout.flush()
        if (warning := _unit_warning()) is not None:
            note(warning)
        if args.open and page:
            _browse(server.url + page)

    if asyncio.run(serve.serve(where, home, started)) == signal.SIGINT:
        note("ended; the sessions are still running")
    return 0


_UNIT = """\
[Unit]
Description=Holdfast server

[Service]
ExecStart={words}
# Only the server is stopped: sessions outlive it.
KillMode=process
Restart=on-failure

[Install]
WantedBy=default.target
"""


def _unit() -> str:
    """The command as it was given, without the option that asked for the unit."""
    import shlex

    words = [os.path.abspath(sys.argv[0]), *(word for word in sys.argv[1:] if word != "--print-unit")]
    # systemd replaces what begins with a percent sign, and variables.
    return _UNIT.format(words=shlex.join(words).replace("%", "%%").replace("$", "$$")).rstrip()


def _unit_warning() -> str | None:
    """What to know in a systemd unit whose stop kills the sessions that were started from it."""
    import subprocess

    from ..runner.process_tree import own_service

    group, service = own_service()
    if service is None:
        return None
    manager = ["--user"] if "/user@" in group else []
    try:
        words = ["systemctl", *manager, "show", "--property=KillMode", "--value", service]
        shown = subprocess.run(words, capture_output=True, text=True, timeout=5, check=False).stdout.strip()
    except (OSError, subprocess.TimeoutExpired):
        shown = ""
    if shown in ("process", "none"):
        return None
    mode = f" (KillMode={shown})" if shown else ""
    return (
        f"stopping {service} kills every process of its control group{mode}; sessions leave this group if they can. "
        "`hold serve --print-unit` prints a unit that stops the server alone"
    )


def _browse(url: str) -> None:
    import webbrowser

    webbrowser.open(url)


OPEN_HELP = """\
Print the address of the running server with a new code, which is good for one login within 5 minutes.
"""

OPEN_USAGE = "[--browser]"
OPEN_EXAMPLES = """
hold open
hold open --browser                          open it in a browser, too
"""


def open_arrange(parser: Parser) -> None:
    parser.add_argument("--browser", action="store_true", help="open the address in a browser")


def open_main(args: Namespace) -> int:
    from ..errors import HoldfastError
    from ..serving.listener import token_path

    try:
        from ..server.tokens import Tokens, running
    except ImportError as problem:
        raise _without(problem.name, "server") from None
    home = _home()
    directory = os.path.dirname(token_path(home, "token"))
    urls = [url for url in running(directory) if not url.startswith("unix:")]
    if not urls:
        none = HoldfastError("no server of this home is running")
        none.fix = "start one with `hold serve`"
        raise none
    url = f"{urls[0]}/#code={Tokens(None, directory).issue_code()}"
    say(url)
    if args.browser:
        _browse(url)
    return 0


MCP_HELP = """\
Run an MCP server: the sessions of one agent as tools and resources, for any MCP client.

Without --http it uses stdin and stdout, as clients expect. Sessions outlive the server: started again for the same
owner, it shows the same sessions and delivers unacknowledged signals again.
"""

MCP_USAGE = "[--toolset NAME] [--owner NAME] [--redact] [--http [--host ADDRESS] [--port N]] [--print-config CLIENT]"
MCP_EXAMPLES = """
hold mcp --print-config claude-code    the configuration for a client
hold mcp                               as clients start it
hold mcp --toolset hermes --owner bot
hold mcp --http --port 8765            for several clients, with a token
"""
_MCP_PORT = 8765


def mcp_arrange(parser: Parser) -> None:
    from ..tools import TOOLSETS
    from ..tools.mcp.clients import CLIENTS

    parser.add_argument("--toolset", default="native", choices=TOOLSETS, help="the toolset (default native)")
    parser.add_argument("--owner", metavar="NAME", help="the owner of the sessions (default: one for this directory)")
    parser.add_argument("--http", action="store_true", help="use streamable HTTP instead of stdio")
    parser.add_argument("--host", default="127.0.0.1", metavar="ADDRESS", help="a loopback address (default 127.0.0.1)")
    parser.add_argument(
        "--port",
        type=port(),
        default=_MCP_PORT,
        metavar="N",
        help=f"the port; 0 takes a free one (default {_MCP_PORT})",
    )
    parser.add_argument("--token-file", metavar="FILE", help="a token other than that of the home")
    parser.add_argument("--allow-host", action="append", default=[], metavar="HOST:PORT", help="accept this Host too")
    parser.add_argument("--allow-origin", action="append", default=[], metavar="URL", help="accept this Origin too")
    parser.add_argument("--redact", action="store_true", help="remove secrets from what the tools return")
    parser.add_argument(
        "--print-config", choices=tuple(CLIENTS), metavar="CLIENT", help="print the configuration for a client"
    )


def mcp_main(args: Namespace) -> int:
    from ..tools.mcp import clients

    owner = args.owner or f"mcp:{os.getcwd()}"
    token = clients.token(args.token_file) if args.http else ""
    if args.print_config:
        from importlib.util import find_spec

        from ..config import load

        # Without these the server could not start.
        load()
        if find_spec("mcp") is None:
            raise _without("mcp", "mcp")

        url = clients.address(args.host, args.port) if args.http else None
        command = clients.command(args.toolset, args.owner, redact=args.redact)
        say(clients.config(args.print_config, command, _whereabouts(), url=url, token=token))
        note(clients.CLIENTS[args.print_config].then)
        return 0
    try:
        from ..tools.mcp import server
    except ImportError as problem:
        raise _without(problem.name, "mcp") from None
    import asyncio

    from .host import author

    if not args.http:
        asyncio.run(server.over_stdio(args.toolset, owner, author("mcp"), redact=args.redact))
        return 0

    def listening(url: str) -> None:
        port = url.rpartition(":")[2].partition("/")[0]
        note(f"{args.toolset} for {owner} on {url}")
        note(f"`hold mcp --http --port {port} --print-config CLIENT` prints how to connect")

    work = server.over_http(
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
        note("ended; the sessions are still running")
    return 0


HOOK_HELP = """\
Notify an agent whose client runs hooks: what happened to its sessions, such as a build that failed, is added to its
next turn, without the agent asking.

Without --turn, the settings for the client are printed: with them it runs `hold hook CLIENT --turn` before and after
each turn. A notice counts as delivered when its turn has ended; after a turn that crashed or was interrupted, it is
delivered again. The owner is that of `hold mcp`, by default one for the directory in which the client was started.
"""

HOOK_USAGE = "claude-code|gemini [--owner NAME] [--toolset NAME] [--turn]"
HOOK_EXAMPLES = """
hold hook claude-code       then put that into ~/.claude/settings.json
hold hook gemini --owner bot
"""


def hook_arrange(parser: Parser) -> None:
    from ..tools import TOOLSETS
    from ..tools.mcp.clients import HOOKS

    parser.add_argument("client", choices=tuple(HOOKS), metavar="CLIENT", help=" or ".join(HOOKS))
    parser.add_argument("--owner", metavar="NAME", help="the owner of the sessions (default: one for this directory)")
    parser.add_argument("--toolset", default="native", choices=TOOLSETS, help="the toolset whose words it uses")
    parser.add_argument("--turn", action="store_true", help="as the client runs it: an event on stdin, JSON on stdout")


def hook_main(args: Namespace) -> int:
    from ..errors import FAILED, HoldfastError
    from ..tools.mcp import clients

    if args.turn:
        try:
            _turn(args, clients.HOOKS[args.client])
        except (HoldfastError, OSError, ValueError, KeyError, TypeError) as problem:
            # Exit code 2 would take the turn away from the user.
            note(f"no notices in this turn: {problem}")
            return FAILED
        return 0
    words = ["--owner", args.owner] if args.owner else []
    words += ["--toolset", args.toolset] if args.toolset != "native" else []
    say(clients.hook_settings(args.client, words, _whereabouts()))
    note(f"put that into {clients.HOOKS[args.client].file}")
    return 0


def _turn(args: Namespace, hooks: Hooks) -> None:
    import json

    from ..sessions.aio import coroutines
    from ..sessions.driver import drive
    from ..signals import hook
    from .host import open_home
    from .output import say_json

    event = json.load(sys.stdin)
    started_in = os.environ.get("CLAUDE_PROJECT_DIR") or os.environ.get("GEMINI_PROJECT_DIR") or os.getcwd()
    owner = args.owner or f"mcp:{os.path.realpath(started_in)}"
    name, conversation = event["hook_event_name"], f"{args.client}:{event['session_id']}"
    with open_home() as hf:
        consumer, kept = coroutines(hf).signals(owner), hf.kept("hook")
        if name == hooks.end:
            drive(hook.end(consumer, kept, conversation))
        elif text := drive(hook.begin(consumer, kept, conversation, args.toolset)):
            say_json({"hookSpecificOutput": {"hookEventName": name, "additionalContext": text}}, lines=True)


def _without(package: str | None, extra: str) -> Unsupported:
    from ..errors import Unsupported

    missing = Unsupported(f"{'an MCP server' if extra == 'mcp' else 'a server'} without the package {package}")
    missing.fix = f"`pip install 'holdfast[{extra}]'`"
    return missing


def _whereabouts() -> dict[str, str]:
    """Variables with the paths of home, configuration and sockets, for a client with another environment."""
    from ..config import config_path
    from ..home import Home

    found = {"HOLDFAST_HOME": Home().path}
    file = config_path(os.environ)
    # A file that is named explicitly must exist.
    if os.environ.get("HOLDFAST_CONFIG") or os.path.exists(file):
        found["HOLDFAST_CONFIG"] = file
    return found | {name: os.environ[name] for name in ("XDG_RUNTIME_DIR", "TMPDIR") if os.environ.get(name)}


def _home() -> Home:
    from ..home import Home

    home = Home()
    home.create()
    return home
