"""Which client a terminal takes its size from, as plain arithmetic."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

POLICIES = ("latest", "smallest", "fixed")


class Sizing:
    """What one client brings to the question. `size` is None until it has sent its first `resize`: what it showed
    before that is the painting of a screen as it was."""

    __slots__ = ("cell", "client", "control", "size", "touched", "visible")

    def __init__(self, client: str, *, control: bool, visible: bool) -> None:
        self.client = client
        self.control = control
        self.visible = visible
        self.size: tuple[int, int] | None = None
        self.cell: tuple[int, int] | None = None
        # Grows with every attach, key and resize: the latest is the greatest.
        self.touched = 0


def choose(policy: str, clients: Iterable[Sizing]) -> tuple[tuple[int, int], Sizing] | None:
    """The size that the clients want, and who decides it; None where nobody does, and the size stays."""
    sized = [client for client in clients if client.control and client.visible and client.size is not None]
    if policy == "fixed" or not sized:
        return None
    latest = max(sized, key=lambda client: client.touched)
    if policy == "smallest":
        rows, cols = (min(each.size[axis] for each in sized if each.size) for axis in (0, 1))
        return (rows, cols), next((each for each in sized if each.size == (rows, cols)), latest)
    assert latest.size is not None
    return latest.size, latest
