"""One view of everything that runs in the background: sessions of runners, and daemons inside a host.

It is `hf.daemons`. The names here are those that a host needs besides: `Kind` and `register` for kinds of its own, and
the types of results.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .handle import Handle, Relay
    from .kinds import Kind, Output, register
    from .lsp import AsyncLanguageServer, LanguageServer
    from .observers import Change


_PLACES = {
    "AsyncLanguageServer": "lsp",
    "Change": "observers",
    "Handle": "handle",
    "Kind": "kinds",
    "LanguageServer": "lsp",
    "Output": "kinds",
    "Relay": "handle",
    "register": "kinds",
}
__all__ = ["AsyncLanguageServer", "Change", "Handle", "Kind", "LanguageServer", "Output", "Relay", "register"]


def __getattr__(name: str) -> object:
    from importlib import import_module

    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: object = getattr(import_module("." + _PLACES[name], __name__), name)
    globals()[name] = value
    return value
