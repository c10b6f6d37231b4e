"""Sessions for agents, in the words that each already knows.

    tools = holdfast.tools.toolset("native", hf, owner="agent-7")
    tools.schemas("openai")                                  # or "anthropic", "mcp"
    answer = await tools.call("run", {"command": "make test"})
    print(answer.text)

A toolset owns nothing: it calls the library and words the results. Another host may open the same toolset for the same
owner at any time, also after this one was killed, and continues where this one was.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from ..errors import BadArgument
from .base import Answer, Call, Tool, Toolset

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from ..sessions.aio import AsyncHoldfast


__all__ = ["TOOLSETS", "Answer", "Call", "Tool", "Toolset", "toolset"]

# The toolsets: each folder and the class in it, imported when it is asked for. The style of its notices is `DrainStyle`
# in its `style.py`; that of `native` is in `signals/render.py`.
_CLASSES = {
    "native": "Native",
    "dominds": "Dominds",
    "evva": "Evva",
    "hermes": "Hermes",
    "openclaw": "OpenClaw",
}
TOOLSETS = tuple(_CLASSES)


def toolset(
    name: str, hf: AsyncHoldfast, *, owner: str, redact: bool | Callable[[str], str] = False, **options: Any
) -> Toolset:
    """The tools of one toolset, for one owner. Options are `approve`, and those of the toolset. Results show what
    commands printed as it is; with `redact` secrets are taken out of them, by the built-in rules or by a function."""
    if name not in _CLASSES:
        raise BadArgument("toolset", f"{name[:40]!a} is not known", "give " + " or ".join(_CLASSES))
    kind: type[Toolset] = getattr(import_module(f"{__name__}.{name}"), _CLASSES[name])
    if kind.redacts_itself:
        options["redact"] = redact
        return kind(hf, owner, **options)
    made = kind(hf, owner, **options)
    if redact:
        from ..signals.redact import redact as redact_all

        made.redact = redact_all if redact is True else redact
    return made
