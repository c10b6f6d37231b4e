"""How programs asked for keys to be reported beyond the plain way: modifyOtherKeys and the kitty keyboard."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    Parameters = tuple[int, ...]

STACK_MAX = 16
_FLAGS = 0x1F


class KeyModes:
    """Each change says whether it was one."""

    __slots__ = ("modify_other", "kitty")

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self.modify_other = 0
        # Flags, the last in force: a stack for the main and one for the alternate screen, which lies on the state
        # nobody pushed.
        self.kitty: list[list[int]] = [[0], [0]]

    def set_modify(self, parameters: Parameters) -> bool:
        """`CSI > 4 ; n m`; without n, or without anything, it is reset."""
        if parameters[:1] not in ((), (4,)):
            return False
        return self._change_modify(parameters[1] if len(parameters) > 1 and parameters[1] <= 3 else 0)

    def disable_modify(self, parameters: Parameters) -> bool:
        """`CSI > 4 n`."""
        return self._change_modify(0) if parameters[:1] == (4,) else False

    def _change_modify(self, value: int) -> bool:
        changed = value != self.modify_other
        self.modify_other = value
        return changed

    def set_kitty(self, screen: bool, parameters: Parameters) -> bool:
        """`CSI = flags ; how u`: 1 exactly these, 2 these too, 3 not these."""
        flags = parameters[0] & _FLAGS if parameters else 0
        how = parameters[1] if len(parameters) > 1 else 1
        now = self.kitty[screen][-1]
        return self._change(screen, now | flags if how == 2 else now & ~flags if how == 3 else flags)

    def push_kitty(self, screen: bool, parameters: Parameters) -> bool:
        stack = self.kitty[screen]
        stack.append(stack[-1])
        del stack[: -STACK_MAX - 1]
        return self._change(screen, parameters[0] & _FLAGS if parameters else 0)

    def pop_kitty(self, screen: bool, parameters: Parameters) -> bool:
        stack = self.kitty[screen]
        before = stack[-1]
        del stack[-(parameters[0] or 1 if parameters else 1) :]
        if not stack:
            stack.append(0)
        return stack[-1] != before

    def _change(self, screen: bool, flags: int) -> bool:
        stack = self.kitty[screen]
        changed = flags != stack[-1]
        stack[-1] = flags
        return changed

    def snapshot(self) -> dict[str, Any]:
        return {"modify_other": self.modify_other, "kitty": [list(stack) for stack in self.kitty]}

    def continue_from(self, snapshot: dict[str, Any]) -> None:
        self.modify_other = snapshot["modify_other"]
        self.kitty = [list(stack) for stack in snapshot["kitty"]]
