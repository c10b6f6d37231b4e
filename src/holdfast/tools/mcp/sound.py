"""Text that UTF-8 has room for. Bytes that are none of it reach us as surrogates, and would end a transport."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...index.rows import plain

if TYPE_CHECKING:
    from typing import TypeVar

    T = TypeVar("T")


def sound(value: T) -> T:
    """The same, with U+FFFD in the place of surrogates, also deep inside."""
    if isinstance(value, str):
        return plain(value)  # type: ignore[return-value]
    if isinstance(value, dict):
        return {sound(key): sound(each) for key, each in value.items()}  # type: ignore[return-value]
    if isinstance(value, list | tuple):
        return [sound(each) for each in value]  # type: ignore[return-value]
    return value
