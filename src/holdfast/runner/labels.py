"""What a program says about itself by OSC: title, directory, link, progress, prompt, notices. Bounded plain text."""

from __future__ import annotations

import re

from .characters import label

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

TITLE_MAX_BYTES = 1024
URI_MAX_BYTES = 4096
STACK_MAX = 16

_EXIT_CODE = re.compile(rb"-?[0-9]{1,10}")
_ZONES = {b"A": "prompt", b"B": "input", b"C": "output", b"D": None}
_PLAIN = (
    *("title", "icon", "title_stack", "cwd", "link", "progress", "pointer", "prompt_zone", "last_exit_code", "bells"),
)


class Labels:
    __slots__ = _PLAIN

    def __init__(self) -> None:
        self.title = ""
        self.icon = ""
        # [title, icon] each, None for what was not pushed.
        self.title_stack: list[list[str | None]] = []
        self.cwd: str | None = None
        # [parameters, URI] of the text that is being printed.
        self.link: list[str] | None = None
        # [state, percent]: 1 normal, 2 error, 3 unknown, 4 paused.
        self.progress: list[int] | None = None
        self.pointer: str | None = None
        self.prompt_zone: str | None = None
        self.last_exit_code: int | None = None
        self.bells = 0

    def reset(self) -> None:
        """As RIS does: titles, directory and the last exit code outlive it."""
        self.title_stack.clear()
        self.link = self.progress = self.pointer = self.prompt_zone = None

    def hear(self, number: int, text: bytes) -> bool:
        """An OSC. Whether that changed something a client acts on."""
        if number in (0, 1, 2):
            return self._set_title(number, label(text, TITLE_MAX_BYTES))
        if number == 7:
            return self._change("cwd", label(text, URI_MAX_BYTES) or None)
        if number == 8:
            parameters, _, uri = text.partition(b";")
            uri_text = label(uri, URI_MAX_BYTES)
            self.link = [label(parameters, TITLE_MAX_BYTES), uri_text] if uri_text else None
        elif number == 9:
            return self._hear_9(text)
        elif number == 22:
            return self._change("pointer", label(text, TITLE_MAX_BYTES) or None)
        elif number == 133:
            return self._hear_prompt(text)
        elif number == 777:
            self.bells += 1
        return False

    def _hear_9(self, text: bytes) -> bool:
        """`4;state;percent` is progress, other numbers are commands of ConEmu, and all else is a notice."""
        fields = text.split(b";")
        if fields[0] != b"4":
            self.bells += not (fields[0].isdigit() and len(fields) > 1)
            return False
        state, percent = (
            int(field) if field.isdigit() and len(field) <= 3 else 0 for field in (*fields[1:3], b"", b"")[:2]
        )
        if state > 4:
            return False
        return self._change("progress", [state, min(percent, 100)] if state else None)

    def _hear_prompt(self, text: bytes) -> bool:
        fields = text.split(b";")
        if fields[0] not in _ZONES:
            return False
        changed = self._change("prompt_zone", _ZONES[fields[0]])
        if fields[0] == b"D":
            code = fields[1] if len(fields) > 1 else b""
            changed |= self._change("last_exit_code", int(code) if _EXIT_CODE.fullmatch(code) else None)
        return changed

    def _set_title(self, number: int, text: str) -> bool:
        changed = False
        if number != 1:
            changed |= self._change("title", text)
        if number != 2:
            changed |= self._change("icon", text)
        return changed

    def push_title(self, which: int) -> None:
        self.title_stack.append([None if which == 1 else self.title, None if which == 2 else self.icon])
        del self.title_stack[:-STACK_MAX]

    def pop_title(self, which: int) -> bool:
        if not self.title_stack:
            return False
        title, icon = self.title_stack.pop()
        changed = title is not None and which != 1 and self._change("title", title)
        return (icon is not None and which != 2 and self._change("icon", icon)) or changed

    def _change(self, name: str, value: object) -> bool:
        changed: bool = getattr(self, name) != value
        setattr(self, name, value)
        return changed

    def snapshot(self) -> dict[str, Any]:
        values = {name: getattr(self, name) for name in _PLAIN}
        return {**values, "title_stack": [list(pushed) for pushed in self.title_stack]}

    def continue_from(self, snapshot: dict[str, Any]) -> None:
        for name in _PLAIN:
            setattr(self, name, snapshot[name])
        self.title_stack = [list(pushed) for pushed in snapshot["title_stack"]]
