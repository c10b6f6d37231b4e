"""A server: attach to sessions over WebSocket, with a token.

It listens on this machine alone unless it is given a certificate. Every request needs the token of the home, which is
made at the first start. Commands outlive the server: however it ends, no session is stopped or changed.
"""

from __future__ import annotations

import signal
import sys

from .output import note, say
from .parsing import Parser

TYPE_CHECKING = False
if TYPE_CHECKING:
    from argparse import Namespace

USAGE = "[--bind ADDRESS] [--port N] [--unix PATH] [--tls-cert FILE --tls-key FILE] [OPTION...]"
EXAMPLES = """
hold serve
hold serve --port 0                          any free port
hold serve --unix ~/.hold/serve.sock --public-url http://localhost:8000
                                             for `ssh -L 8000:/home/me/.hold/serve.sock host`
hold serve --bind 0.0.0.0 --tls-cert cert.pem --tls-key key.pem --host-name hold.example
"""
_PORT = 4653


def arrange(parser: Parser) -> None:
    parser.add_argument("--bind", default="127.0.0.1", metavar="ADDRESS", help="listen there (default 127.0.0.1)")
    parser.add_argument("--port", type=int, default=_PORT, metavar="N", help=f"0 takes a free one (default {_PORT})")
    parser.add_argument("--unix", metavar="PATH", help="listen on a unix socket instead, in a directory of your own")
    parser.add_argument("--tls-cert", metavar="FILE", help="the certificate, in PEM; other machines need it")
    parser.add_argument("--tls-key", metavar="FILE", help="its key")
    parser.add_argument("--host-name", action="append", default=[], metavar="NAME", help="one more name of the server")
    parser.add_argument(
        "--allow-origin", action="append", default=[], metavar="URL", help="a page of another server that may ask"
    )
    parser.add_argument("--public-url", metavar="URL", help="how it is reached where something forwards to it")


def main(args: Namespace) -> int:
    import asyncio

    from ..errors import Unsupported
    from ..home import Home

    try:
        from ..server import entrance, serve
    except ImportError as problem:
        missing = Unsupported(f"a server without the package {problem.name}")
        missing.fix = "`pip install holdfast[server]`"
        raise missing from None
    where = entrance.Entrance(
        args.bind,
        args.port,
        args.unix,
        args.tls_cert,
        args.tls_key,
        tuple(args.host_name),
        tuple(args.allow_origin),
        args.public_url,
    )

    def started(server: serve.Started) -> None:
        say(f"{server.url} serves this home; programs send `Authorization: Bearer hf_home_$(cat {server.token_path})`")
        # A program that starts us waits for this line.
        sys.stdout.flush()

    if asyncio.run(serve.serve(where, Home(), started)) == signal.SIGINT:
        note("left; the sessions go on")
    return 0
