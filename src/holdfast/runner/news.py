"""Signals that have come from another place: whoever waits for them here is woken, as their runner would."""

from __future__ import annotations

import os

from . import jsontext, records, wake
from .people import People
from .signalfile import VARIANTS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable

    Record = dict[str, Any]


class News:
    def __init__(
        self,
        home: str,
        spec: Record,
        directory: int,
        endpoint: str,
        environment: dict[str, str],
        say: Callable[[str], None],
    ) -> None:
        self._spec = spec
        self._directory = directory
        self._runtime = os.path.dirname(endpoint)
        settings = spec.get("people")
        self._people = None if settings is None else People(home, settings, environment, say)
        self._partial = b""
        self._ended: Record | None = None

    def came(self, raw: bytes, *, anew: bool) -> None:
        """These are the next bytes of the file of signals, or the first of one that was begun anew."""
        *lines, self._partial = ((b"" if anew else self._partial) + raw).split(b"\n")
        seq = 0
        for line in lines:
            try:
                record = jsontext.read_finite(line)
                seq = max(seq, int(record.get("seq") or record.get("queued") or 0))
                self._tell_people(record)
            except (ValueError, AttributeError, TypeError, RecursionError):
                continue  # hosts tell it apart as a bad line
        # Whose it is was decided here, whatever the place says.
        wake.call(self._runtime, self._now("owner"), self._spec["id"], seq)

    def ended_there(self) -> None:
        """Without a word of its runner."""
        wake.call(self._runtime, self._now("owner"), self._spec["id"], 0)

    def _tell_people(self, record: Record) -> None:
        variant = next((name for name in VARIANTS if name in record), None)
        if variant == "lifecycle" and record[variant].get("phase") == "ended":
            self._ended = record
        if record.get("queued") and self._ended is not None:
            record, variant = {**self._ended, "routed": True}, "lifecycle"
        if self._people is not None and variant is not None and record.get("routed") is True:
            self._people.called(variant, record, self._now("notify_people"))

    def _now(self, option: str) -> Any:
        changed = records.found(self._directory, records.HERE).get("changed") or {}
        return changed.get(option, self._spec.get(option))
