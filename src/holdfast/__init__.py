"""Run commands that outlive the program that started them.

    import holdfast

    with holdfast.open() as hf:
        web = hf.start(["npm", "run", "dev"], name="web")
        print(web.wait(match="Local:", timeout=30).reason, web.tail(20))

Names are loaded when they are first used, so that importing this package costs nothing.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .errors import HoldfastError as HoldfastError
    from .sessions.aio import AsyncHoldfast as AsyncHoldfast
    from .sessions.aio import AsyncSession as AsyncSession
    from .sessions.aio import open_async as open_async
    from .sessions.api import Holdfast as Holdfast
    from .sessions.api import Session as Session
    from .sessions.api import open as open  # noqa: A004  the verb users say; holdfast.open, never a bare open


__version__ = "0.2.0"


_PLACES = {
    "HoldfastError": "errors",
    "AsyncHoldfast": "sessions.aio",
    "AsyncSession": "sessions.aio",
    "open_async": "sessions.aio",
    "Holdfast": "sessions.api",
    "Session": "sessions.api",
    "open": "sessions.api",
}
__all__ = [
    "AsyncHoldfast",
    "AsyncSession",
    "Holdfast",
    "HoldfastError",
    "Session",
    "errors",
    "open",
    "open_async",
]


def __getattr__(name: str) -> object:
    from importlib import import_module

    if name == "errors":
        return import_module(".errors", __name__)
    if name not in _PLACES:
        raise AttributeError(f"module 'holdfast' has no attribute {name!r}")
    value: object = getattr(import_module("." + _PLACES[name], __name__), name)
    globals()[name] = value
    return value
