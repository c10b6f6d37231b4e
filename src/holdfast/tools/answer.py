"""What a tool gives back: text for the model, and the same facts for programs."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from ..host.text import all_visible

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

    from ..errors import HoldfastError


class Answer:
    """`error` says that the call did not do what was asked; `data` is JSON all the way down.

    Clients show a model the one or the other, so each says everything. `data` has program output under `output` and our
    own words beside it under `message`, or the whole under `text`; `structured` sees to the latter.
    """

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

    def visible(self) -> Answer:
        """The same with nothing in it that a reader does not see: bidi, zero-width and tag characters are spelled."""
        data = _each_text(self.data, all_visible)
        text = json.dumps(data, ensure_ascii=False) if self._is_json() else all_visible(self.text)
        return Answer(text, data, error=self.error)

    def structured(self, left_out: tuple[str, ...] = ()) -> dict[str, Any]:
        """The data, complete on its own, without the keys that repeat the text at length."""
        found = {key: value for key, value in self.data.items() if key not in left_out}
        return found if "message" in found or self._says_all() else {**found, "text": self.text}

    def _says_all(self) -> bool:
        error = self.data.get("error")
        return self._is_json() or (isinstance(error, dict) and error.get("message") == self.text)

    def _is_json(self) -> bool:
        """Some families give the data itself as text."""
        return self.text.startswith("{") and self.text == json.dumps(self.data, ensure_ascii=False)


def _each_text(value: Any, change: Callable[[str], str]) -> Any:
    if isinstance(value, str):
        return change(value)
    if isinstance(value, dict):
        return {key: _each_text(each, change) for key, each in value.items()}
    return [_each_text(each, change) for each in value] if isinstance(value, (list, tuple)) else value
