"""Is the command ready? Probes while it starts, one answer for each attempt: ready, or given up after a time.

Ports are looked at and servers asked at growing intervals, as long as it starts and no longer; lines are read as they
are printed.
"""

from __future__ import annotations

import time

from . import probes
from .fence import Fence
from .following import Following, Slices
from .patterns import BadPattern, Pattern
from .sieve import Sieve

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable

    from .life import Life
    from .lines import Line
    from .loop import Timer
    from .probes import Port

_FIRST_S = 0.05
_EVERY_MAX_S = 1.0
# A line that is not finished is read as it stands after so long without output.
_PARTIAL_S = 0.5
_CATCH_UP_S = 2.0


class Ready:
    """`settled(ok)` is called once it is known, for whoever waits with it."""

    def __init__(
        self, life: Life, settings: dict[str, Any], settled: Callable[[bool], None] = lambda _ok: None
    ) -> None:
        self._life = life
        self._settings = settings
        self._settled = settled
        self._all = settings["mode"] == "all"
        self._names = [probes.name_of(each) for each in settings["probes"]]
        self._answer: dict[str, Any] | None = None
        self._clear()

    def _clear(self) -> None:
        self._began = time.monotonic()
        # What each probe said last, and which were satisfied.
        self._details = [""] * len(self._names)
        self._met: set[int] = set()
        self._asked: dict[int, Port] = {}
        self._trying: set[int] = set()
        self._lines: _LineProbes | None = None
        self._tick: Timer | None = None
        self._deadline: Timer | None = None
        self._every_s = _FIRST_S

    @property
    def answer(self) -> dict[str, Any] | None:
        """Of this attempt, as it was told; None before."""
        return self._answer

    def begin(self, _attempt: int) -> None:
        self.close()
        self._answer = None
        self._clear()
        patterns: dict[int, Pattern] = {}
        for number, each in enumerate(self._settings["probes"]):
            try:
                if "line" in each:
                    patterns[number] = Pattern(each["line"])
                elif "told" not in each:
                    self._asked[number] = probes.Port(self._life, each, owner_check=self._settings["owner_check"])
            except (probes.BadProbe, BadPattern) as problem:
                self._details[number] = str(problem)  # let pass by a host of another version
        if patterns:
            self._lines = _LineProbes(self._life, patterns, self._line_seen)
        self._deadline = self._life.loop.after(self._settings["timeout"], self._give_up)
        if self._asked:
            self._tick = self._life.loop.after(self._every_s, self._try_all)

    def heard(self, stream: str, size: int) -> None:
        if self._lines is not None:
            self._lines.heard(stream, size)

    def told(self) -> None:
        """A host says so. Where that is not one probe among others, it knows better than they do."""
        number = next((number for number, each in enumerate(self._settings["probes"]) if "told" in each), None)
        if self._answer is not None or self._deadline is None:
            return
        if number is None:
            self._tell(True, "told", "a host said so")
        else:
            self._details[number] = "a host said so"
            self._meet(number)

    def pause(self) -> None:
        self.close()

    def finish(self) -> None:
        """The command is gone. What it printed last may have been the line."""
        if self._lines is not None:
            self._lines.catch_up()
        if self._answer is None and self._deadline is not None:
            self._tell(False, self._unmet(), self._because("the command ended before it was ready"))
        self.close()

    def facts(self) -> dict[str, Any]:
        if self._answer is not None:
            return {"ready": self._answer}
        waits = {self._names[n]: said for n, said in enumerate(self._details) if n not in self._met}
        return {"ready": {"ok": None, "waits_for": waits}}

    def close(self) -> None:
        for timer in (self._tick, self._deadline):
            if timer is not None:
                timer.cancel()
        self._tick = self._deadline = None
        for probe in self._asked.values():
            probe.cancel()
        self._asked.clear()
        if self._lines is not None:
            self._lines.close()
            self._lines = None

    def _try_all(self) -> None:
        if self._tick is not None:
            self._tick.cancel()
            self._tick = None
        for number in list(self._asked):
            if number in self._asked and number not in self._met and number not in self._trying:
                self._try(number)
        if self._asked:
            self._every_s = min(2 * self._every_s, _EVERY_MAX_S)
            self._tick = self._life.loop.after(self._every_s, self._try_all)

    def _try(self, number: int) -> None:
        def tried(ok: bool, detail: str) -> None:
            self._trying.discard(number)
            self._details[number] = detail
            if ok:
                self._meet(number)

        self._trying.add(number)
        self._asked[number].try_(tried)

    def _line_seen(self, number: int, stream: str, line: Line) -> None:
        self._details[number] = f"{stream}:{line.offset}: {line.text[:200]}"
        self._meet(number)

    def _meet(self, number: int) -> None:
        self._met.add(number)
        if self._answer is not None or (self._all and len(self._met) < len(self._names)):
            return
        met = sorted(self._met) if self._all else [number]
        details = "; ".join(self._details[each] for each in met)
        self._tell(True, ", ".join(self._names[each] for each in met), details)

    def _give_up(self) -> None:
        self._deadline = None
        if self._lines is not None:
            self._lines.look_at_partials()
        if self._answer is None:
            self._try_all()  # a last look, for what it says
        if self._answer is None:
            why = f"not ready after {self._settings['timeout']:g} s"
            self._tell(False, self._unmet(), self._because(why))

    def _unmet(self) -> str:
        return ", ".join(name for number, name in enumerate(self._names) if number not in self._met)

    def _because(self, why: str) -> str:
        said = [detail for number, detail in enumerate(self._details) if detail and number not in self._met]
        return ": ".join([why, *(["; ".join(said)] if said else [])])

    def _tell(self, ok: bool, probe: str, detail: str) -> None:
        after_s = round(time.monotonic() - self._began, 3)
        self._answer = {"ok": ok, "probe": probe, "detail": detail, "after_s": after_s}
        self.close()
        # Where nothing but a host's own word decides, that host knows already.
        own_word = all("told" in each for each in self._settings["probes"])
        self._life.signals.emit("ready", dict(self._answer), routed=not (ok and own_word))
        self._settled(ok)


class _LineProbes:
    """Waits for a line of each pattern. One that is not finished counts as it stands when the command has paused."""

    def __init__(self, life: Life, patterns: dict[int, Pattern], seen: Callable[[int, str, Line], None]) -> None:
        self._life = life
        self._patterns = patterns
        self._seen = seen
        self._fence = Fence()
        sieve = Sieve(patterns.values())
        self._following = Following(life.log, self._take, fence=self._fence, sieve=sieve)
        self._slices = Slices(life.loop, self._following)
        self._heard_at = 0.0
        self._timer: Timer | None = None

    def heard(self, stream: str, size: int) -> None:
        self._slices.heard(stream, size)
        self._heard_at = time.monotonic()
        if self._timer is None:
            self._timer = self._life.loop.after(_PARTIAL_S, self._quiet)

    def catch_up(self) -> None:
        self._following.read(_CATCH_UP_S)
        self._following.end()

    def look_at_partials(self) -> None:
        with self._fence:
            for stream, line in self._following.partials():
                self._take(stream, line)

    def close(self) -> None:
        self._slices.close()
        self._patterns = {}
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _quiet(self) -> None:
        self._timer = None
        quiet_s = time.monotonic() - self._heard_at
        if quiet_s < _PARTIAL_S or self._following.behind:
            self._timer = self._life.loop.after(max(_PARTIAL_S - quiet_s, 0.05), self._quiet)
        else:
            self.look_at_partials()

    def _take(self, stream: str, line: Line) -> None:
        for number, pattern in list(self._patterns.items()):
            if not pattern.hears(stream):
                continue
            if self._fence.matches(pattern, line) and number in self._patterns:
                del self._patterns[number]
                self._seen(number, stream, line)
