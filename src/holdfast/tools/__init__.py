"""Sessions for agents, in the words that each already knows.

    tools = holdfast.tools.toolset("native", hf, owner="agent-7")
    tools.schemas("openai")                                  # or "anthropic", "mcp"
    answer = await tools.call("run", {"command": "make test"})
    print(answer.text)

A toolset owns nothing: it calls the library and words what comes back. Another host may open the same one for the same
owner at any time, also after this one was killed, and goes on where this one was.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from ..errors import BadArgument
from .answer import Answer
from .toolset import Call, Tool, Toolset

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from ..host.aio import AsyncHoldfast

__all__ = ["TOOLSETS", "Answer", "Call", "Tool", "Toolset", "toolset"]

# Where each is; loaded when it is asked for.
_PLACES = {
    "native": ("native", "Native"),
    "dominds": ("dominds", "Dominds"),
    "evva": ("evva", "Evva"),
    "hermes": ("hermes", "Hermes"),
    "openclaw": ("openclaw", "OpenClaw"),
}
TOOLSETS = tuple(_PLACES)


def toolset(
    name: str, hf: AsyncHoldfast, *, owner: str, redact: bool | Callable[[str], str] = False, **options: Any
) -> Toolset:
    """The tools of one family, for one owner. Options are `approve`, and those of the family. Results show what
    commands printed as it is; with `redact` secrets are taken out of them, by the built-in rules or by a function."""
    if name not in _PLACES:
        raise BadArgument("toolset", f"{name[:40]!a} is not known", "give " + " or ".join(_PLACES))
    module, class_name = _PLACES[name]
    kind: type[Toolset] = getattr(import_module(f"{__name__}.{module}"), class_name)
    if kind.redacts_itself:
        options["redact"] = redact
        return kind(hf, owner, **options)
    made = kind(hf, owner, **options)
    if redact:
        from ..signals.redact import redact as redact_all

        made.redact = redact_all if redact is True else redact
    return made
