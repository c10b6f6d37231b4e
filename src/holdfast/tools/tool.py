"""One tool, as a model sees it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .parameters import Parameter


class Tool:
    """One tool as a model sees it. `reads` changes nothing; `destroys` may end what runs, or runs a shell line, which
    may do anything; `repeats` may be called again with the same arguments and changes nothing more; `opens` reaches
    beyond this machine's own records."""

    __slots__ = ("description", "destroys", "name", "opens", "parameters", "reads", "repeats", "title")

    def __init__(
        self,
        name: str,
        description: str,
        parameters: Sequence[Parameter] = (),
        *,
        title: str = "",
        reads: bool = False,
        destroys: bool = False,
        repeats: bool = False,
        opens: bool = False,
    ) -> None:
        self.name = name
        self.title = title
        self.description = description
        self.parameters = tuple(parameters)
        self.reads = reads
        self.destroys = destroys
        self.repeats = repeats or reads
        self.opens = opens

    def __repr__(self) -> str:
        return f"<Tool {self.name}>"
