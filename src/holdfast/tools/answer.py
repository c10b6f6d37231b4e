"""What a tool gives back: text for the model, and the same facts for programs."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
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

    def redacted(self, redact: Callable[[str], str]) -> Answer:
        return Answer(redact(self.text), _each_text(self.data, redact), error=self.error)

    @classmethod
    def of_error(cls, problem: HoldfastError) -> Answer:
        return cls(str(problem), {"error": problem.to_json()}, error=True)


def _each_text(value: Any, redact: Callable[[str], str]) -> Any:
    if isinstance(value, str):
        return redact(value)
    if isinstance(value, dict):
        return {key: _each_text(each, redact) for key, each in value.items()}
    return [_each_text(each, redact) for each in value] if isinstance(value, (list, tuple)) else value
