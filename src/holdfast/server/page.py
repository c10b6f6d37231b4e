"""The page in the browser: index.html with a nonce of its own, and its assets, as the build of `web/` made them."""

from __future__ import annotations

import secrets
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from starlette.responses import Response

from .endpoints import endpoint
from .responses import NoSuchAddress

if TYPE_CHECKING:
    from .app import Ask

ADDRESSES = ("/", "/s/{session}", "/n/{node}/s/{session}", "/inbox", "/grid", "/link")
_BUILT = Path(__file__).parent / "page"
_NOT_BUILT = "The page is not part of this build: run `make page`. The API is described at /openapi.json.\n"
_MEDIA = {".js": "text/javascript", ".css": "text/css"}


def is_built() -> bool:
    return (_BUILT / "index.html").exists()


async def page(ask: Ask) -> Response:
    if not is_built():
        return Response(_NOT_BUILT, media_type="text/plain")
    nonce = secrets.token_urlsafe(16)
    headers = {"Content-Security-Policy": _policy(nonce, ask.request.headers["host"])}
    return Response(_index().replace("{nonce}", nonce), headers=headers, media_type="text/html")


for _address in ADDRESSES:
    endpoint("GET", _address, None, "The page", query=None, media=("text/html", "text/plain"))(page)


@cache
def _index() -> str:
    return (_BUILT / "index.html").read_text()


def _policy(nonce: str, host: str) -> str:
    """What the page may load, and from where. Some browsers do not count a WebSocket as 'self'."""
    return "; ".join(
        [
            *("default-src 'none'", "script-src 'self'", f"style-src 'self' 'nonce-{nonce}'", "img-src 'self' data:"),
            *("font-src 'self'", "worker-src 'self'", "manifest-src 'self'"),
            f"connect-src 'self' ws://{host} wss://{host}",
            *("base-uri 'none'", "form-action 'none'", "frame-ancestors 'none'"),
            "require-trusted-types-for 'script'",
        ]
    )


@cache
def _assets() -> dict[str, Path]:
    return {path.name: path for path in (_BUILT / "assets").glob("*") if path.suffix in _MEDIA}


@endpoint("GET", "/assets/{name}", None, "A part of the page", media=tuple(_MEDIA.values()))
async def asset(ask: Ask) -> Response:
    path = _assets().get(ask.part("name"))
    if path is None:
        raise NoSuchAddress
    # The name has a hash of the contents.
    headers = {"Cache-Control": "public, max-age=31536000, immutable", "Vary": "Accept-Encoding"}
    if path.name.startswith("sw-"):
        headers["Service-Worker-Allowed"] = "/"
    if "gzip" in ask.request.headers.get("accept-encoding", ""):
        headers["Content-Encoding"] = "gzip"
        path = path.with_name(path.name + ".gz")
    return Response(path.read_bytes(), headers=headers, media_type=_MEDIA[Path(ask.part("name")).suffix])
