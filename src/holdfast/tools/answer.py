"""What a tool gives back: text for the model, and the same facts for programs."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from ..errors import HoldfastError


class Answer:
    """`error` says that the call did not do what was asked; `data` is JSON all the way down."""

    __slots__ = ("data", "error", "text")

    def __init__(self, text: str, data: Mapping[str, Any] | None = None, *, error: bool = False) -> None:
        self.text = text
        self.data: dict[str, Any] = dict(data or {})
        self.error = error

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        return f"<Answer {'error ' if self.error else ''}{self.text[:60]!r}>"

    @classmethod
    def of_error(cls, problem: HoldfastError) -> Answer:
        return cls(str(problem), {"error": problem.to_json()}, error=True)
