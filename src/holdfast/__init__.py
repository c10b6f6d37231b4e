"""Commands that outlive whoever started them.

    import holdfast

    with holdfast.open() as hf:
        web = hf.start(["npm", "run", "dev"], name="web")
        print(web.wait(match="Local:", timeout=30).reason, web.tail(20))

Names are loaded when they are first used, so that importing this package costs nothing.
"""

from __future__ import annotations

__version__ = "0.1.0"

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .errors import HoldfastError as HoldfastError
    from .host.aio import AsyncHoldfast as AsyncHoldfast
    from .host.aio import AsyncSession as AsyncSession
    from .host.aio import open_async as open_async
    from .host.api import Holdfast as Holdfast
    from .host.api import Session as Session
    from .host.api import open as open  # noqa: A004  the verb users say; holdfast.open, never a bare open

_PLACES = {
    "HoldfastError": "errors",
    "AsyncHoldfast": "host.aio",
    "AsyncSession": "host.aio",
    "open_async": "host.aio",
    "Holdfast": "host.api",
    "Session": "host.api",
    "open": "host.api",
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
