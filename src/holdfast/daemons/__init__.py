"""The unified view of all that runs in the background: sessions of runners, and what a host runs inside itself.

It is `hf.daemons`. Here are the names that a host meets beside it: `Kind` and `register` for kinds of its own, and what
the calls give back.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .aiolsp import AsyncLanguageServer
    from .handle import Handle
    from .kinds import Kind, Output, register
    from .lsp import LanguageServer
    from .observers import Change
    from .relay import Relay

_PLACES = {
    "AsyncLanguageServer": "aiolsp",
    "Change": "observers",
    "Handle": "handle",
    "Kind": "kinds",
    "LanguageServer": "lsp",
    "Output": "kinds",
    "Relay": "relay",
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
