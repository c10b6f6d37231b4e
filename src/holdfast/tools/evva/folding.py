"""Signals into the one message of a fold, with as much of an ending as was asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...errors import BadArgument
from ...runner.lines import tail
from ...signals import facts
from ...signals.budget import Limits
from ...signals.drain import QUOTES, render

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ...host.core import Core
    from ...signals.drain import Message
    from ...signals.records import Signal as Record

STYLE = "evva"
TAIL_CHARACTERS_MOST = 3000
# Enough for so many characters of any kind, and for what is stripped.
_TAIL_BYTES = 64 << 10


class Folding:
    def __init__(self, core: Core, quote: str, ended_tail_chars: int | None) -> None:
        if quote not in QUOTES:
            raise BadArgument("quote", f"{quote[:40]!a} is not known", "give " + " or ".join(QUOTES))
        if ended_tail_chars is not None and not 1 <= ended_tail_chars <= TAIL_CHARACTERS_MOST:
            why = f"{ended_tail_chars} is out of bounds"
            raise BadArgument("ended_tail_chars", why, f"give 1 to {TAIL_CHARACTERS_MOST}")
        self._core = core
        self._quote = quote
        self._raised = ended_tail_chars is not None
        self._limits = Limits.of(core.config)
        if ended_tail_chars is not None:
            self._raise(self._limits, ended_tail_chars)

    def message(self, records: Sequence[Record], parked: Sequence[str]) -> Message:
        if self._raised:
            for record in records:
                if record.ends_session:
                    self._lengthen(record)
        return render(records, STYLE, limits=self._limits, quote=self._quote, parked=parked)

    @staticmethod
    def _raise(limits: Limits, chars: int) -> None:
        limits.failed_chars = max(limits.failed_chars, chars)
        limits.completed_chars = max(limits.completed_chars, chars)
        limits.failed_lines = max(limits.failed_lines, limits.session_lines)
        limits.completed_lines = max(limits.completed_lines, limits.session_lines)
        # A block has more than these lines: its heading, and what stands before each.
        limits.session_chars = max(limits.session_chars, 2 * chars)

    def _lengthen(self, record: Record) -> None:
        """A record has room for less: the log tells the rest."""
        tails = dict(facts.table(record.fields, "tail"))
        if record.session is None or not tails:
            return
        log = self._core.log(record.session)
        chars = max(self._limits.failed_chars, self._limits.completed_chars)
        for stream, end in facts.offsets(record.fields, "ends").items():
            if stream in tails and stream != "tty":
                at = max(0, end - _TAIL_BYTES)
                found = list(log.blocks(stream, at, end))
                raw = b"".join(data for _, data in found)
                if raw:
                    tails[stream] = tail(raw, found[0][0], lines=self._limits.session_lines, chars=chars)
        record.fields["tail"] = tails
