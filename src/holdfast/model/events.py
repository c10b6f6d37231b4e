"""The events of an attached client, one class per frame."""

from __future__ import annotations

from .session import Declared, shell_code

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ..errors import HoldfastError


class Event(Declared):
    """One of the classes below."""

    def __repr__(self) -> str:
        facts = ", ".join(f"{name}={_short(getattr(self, name))}" for name in type(self).__annotations__)
        return f"{type(self).__name__}({facts})"


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


class Init(Event):
    """The screen at offset `at`: `state` of the terminal there, and the ranges of the log that restore it. Those come
    as `Data` below `at`; output from `at` on is live."""

    at: int
    size: tuple[int, int]
    state: dict[str, Any] | None
    restore: list[dict[str, Any]]
    resizes: list[tuple[int, int, int]]
    exact: bool
    clients: list[dict[str, Any]]
    client_id: str | None
    status: dict[str, Any] | None


class Data(Event):
    """Raw bytes of the log, and their offset."""

    offset: int
    data: bytes


class Mode(Event):
    """The bytes before `offset` changed a mode that clients act on."""

    offset: int
    state: dict[str, Any]


class Size(Event):
    """The terminal has this size now; `by` is the client that decides it."""

    rows: int
    cols: int
    by: str | None


class Clients(Event):
    """The attached clients, and the one that decides the size."""

    clients: list[dict[str, Any]]
    sizes_by: str | None


class Bell(Event):
    """A notice to people, about this session or another."""

    text: str


class Gap(Event):
    """Missing bytes: `dropped` by the cap, `skipped` because this client was too far behind, refused by the `disk`."""

    begin: int
    end: int
    reason: str


class Written(Event):
    """The kernel has accepted the input with this number."""

    id: int
    bytes: int


class Exit(Event):
    """The command has ended; all recorded output came before this."""

    code: int | None
    signal: str | None
    cause: str
    output_complete: bool
    output_open: bool

    @property
    def shell_code(self) -> int | None:
        """The code that a shell would show; None if neither a code nor a signal is known."""
        return shell_code(self.code, self.signal)


class Refused(Event):
    """A request of this client was refused; `id` is the number of the input, if it was one."""

    error: HoldfastError
    id: int | None
