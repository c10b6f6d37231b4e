"""Whether the command is ready, and whether it stays healthy: probes and their results.

While the command starts, ports and servers are probed at growing intervals; lines are read as they are printed.
"""

from __future__ import annotations

import time

from ...core import clock
from ...core.loop import Alarm
from . import Feature, probes
from .line_reader import PAUSE, LineFollower, Slices
from .patterns import BadPattern, Pattern, RegexTimeout
from .probes import ANSWER_S

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable

    from ...core.vt.text import Line
    from . import SessionPart, SessionWithProcesses
    from .probes import Command, Port


_FIRST_S = 0.05
_EVERY_MAX_S = 1.0
# The detection is late by at most this part of the waiting time.
_LATE = 0.02
# An unfinished line is searched after this long without output.
_PARTIAL_S = 0.5
_CATCH_UP_S = 2.0


class Ready(Feature):
    """One result for each attempt: ready, or given up after a time. `settled(ok)` is called with it."""

    def __init__(
        self,
        session: SessionWithProcesses,
        settings: dict[str, Any],
        settled: Callable[[bool], None] = lambda _ok: None,
    ) -> None:
        self._session = session
        self._settings = settings
        self._settled = settled
        self._all = settings["mode"] == "all"
        self._names = [probes.name_of(each) for each in settings["probes"]]
        self._answer: dict[str, Any] | None = None
        self._tick = Alarm(session.loop, self._try_all)
        self._deadline = Alarm(session.loop, self._give_up)
        self._clear()

    def _clear(self) -> None:
        self._began = time.monotonic()
        # The last detail of each probe, and which were satisfied.
        self._details = [""] * len(self._names)
        self._met: set[int] = set()
        self._asked: dict[int, Port] = {}
        self._trying: set[int] = set()
        self._lines: _LineProbes | None = None

    def begin(self, attempt: int) -> None:
        self.close()
        self._answer = None
        self._clear()
        patterns: dict[int, Pattern] = {}
        for number, each in enumerate(self._settings["probes"]):
            try:
                if "line" in each:
                    patterns[number] = Pattern(each["line"])
                elif "told" not in each:
                    self._asked[number] = probes.Port(self._session, each, owner_check=self._settings["owner_check"])
            except (probes.BadProbe, BadPattern) as problem:
                self._details[number] = str(problem)  # a host of another version accepted it
        if patterns:
            self._lines = _LineProbes(self._session, patterns, self._line_seen)
        self._deadline.set(self._settings["timeout"])
        if self._asked:
            self._tick.set(_FIRST_S)

    def on_output(self, stream: str) -> None:
        if self._lines is not None:
            self._lines.on_output(stream)

    def report(self) -> None:
        """A host reports that the command is ready. Without a `told` probe, that is decisive at once."""
        number = next((number for number, each in enumerate(self._settings["probes"]) if "told" in each), None)
        if self._answer is not None or not self._deadline.is_set:
            return
        if number is None:
            self._decide(True, "told", "a host said so")
        else:
            self._details[number] = "a host said so"
            self._meet(number)

    def finish(self) -> None:
        """The last line of the command may be the one that makes it ready."""
        if self._lines is not None:
            self._lines.catch_up()
        if self._answer is None and self._deadline.is_set:
            self._decide(False, self._unmet(), self._because("the command ended before it was ready"))
        self.close()

    def facts(self) -> dict[str, Any]:
        if self._answer is not None:
            return {"ready": self._answer}
        waits = {self._names[n]: said for n, said in enumerate(self._details) if n not in self._met}
        return {"ready": {"ok": None, "waits_for": waits}}

    def close(self) -> None:
        self._tick.cancel()
        self._deadline.cancel()
        for probe in self._asked.values():
            probe.cancel()
        self._asked.clear()
        if self._lines is not None:
            self._lines.close()
            self._lines = None

    def _try_all(self) -> None:
        self._tick.cancel()
        for number in list(self._asked):
            if number in self._asked and number not in self._met and number not in self._trying:
                self._try(number)
        if self._asked:
            waited_s = time.monotonic() - self._began
            self._tick.set(min(max(_FIRST_S, waited_s * _LATE), _EVERY_MAX_S))

    def _try(self, number: int) -> None:
        def tried(ok: bool, detail: str) -> None:
            self._trying.discard(number)
            self._details[number] = detail
            if ok:
                self._meet(number)

        self._trying.add(number)
        self._asked[number].run(tried)

    def _line_seen(self, number: int, stream: str, line: Line) -> None:
        self._details[number] = f"{stream}:{line.offset}: {line.text[:200]}"
        self._meet(number)

    def _meet(self, number: int) -> None:
        self._met.add(number)
        if self._answer is not None or (self._all and len(self._met) < len(self._names)):
            return
        met = sorted(self._met) if self._all else [number]
        details = "; ".join(self._details[each] for each in met)
        self._decide(True, ", ".join(self._names[each] for each in met), details)

    def _give_up(self) -> None:
        if self._lines is not None:
            self._lines.look_at_partials()
        if self._answer is None:
            self._try_all()  # a last try, for its detail
        if self._answer is None:
            why = f"not ready after {self._settings['timeout']:g} s"
            self._decide(False, self._unmet(), self._because(why))

    def _unmet(self) -> str:
        return ", ".join(name for number, name in enumerate(self._names) if number not in self._met)

    def _because(self, why: str) -> str:
        said = [detail for number, detail in enumerate(self._details) if detail and number not in self._met]
        return ": ".join([why, *(["; ".join(said)] if said else [])])

    def _decide(self, ok: bool, probe: str, detail: str) -> None:
        after_s = round(time.monotonic() - self._began, 3)
        self._answer = {"ok": ok, "probe": probe, "detail": detail, "after_s": after_s}
        self.close()
        # If nothing but a host's report decides, that host knows already.
        own_word = all("told" in each for each in self._settings["probes"])
        self._session.signals.emit("ready", dict(self._answer), routed=not (ok and own_word))
        self._settled(ok)


class _LineProbes:
    """Waits for a line of each pattern. An unfinished line is searched when the command has paused."""

    def __init__(
        self, session: SessionPart, patterns: dict[int, Pattern], seen: Callable[[int, str, Line], None]
    ) -> None:
        self._patterns = patterns
        self._seen = seen
        self._streams = list(session.log.ends())
        self._timeout = RegexTimeout()
        self._follower = LineFollower(session.log, self._take, timeout=self._timeout, patterns=patterns.values())
        self._slices = Slices(session.loop, self._follower, pause=PAUSE, quiet_s=_PARTIAL_S, partial=self._take)
        self.on_output = self._slices.on_output

    def catch_up(self) -> None:
        self._follower.read(_CATCH_UP_S)
        self._follower.end()

    def look_at_partials(self) -> None:
        for stream in self._streams:
            line = self._follower.partial(stream)
            if line is not None:
                self._follower.give(self._take, stream, line)

    def close(self) -> None:
        self._slices.close()
        self._patterns = {}

    def _take(self, stream: str, line: Line) -> None:
        for number, pattern in list(self._patterns.items()):
            if not pattern.applies_to(stream):
                continue
            if self._timeout.matches(pattern, line) and number in self._patterns:
                del self._patterns[number]
                self._seen(number, stream, line)


HEALTHY, UNHEALTHY = "healthy", "unhealthy"
# A health probe is the one thing that wakes an idle session again and again.
LEAST_INTERVAL_S = 5.0


class Tally:
    """From hits and misses to a state: one hit is enough; only several misses in a row count. Pure."""

    def __init__(self, misses: int) -> None:
        self._enough = misses
        self._missed = 0
        self._run_since = ""
        self.state: str | None = None
        self.since: str | None = None

    def take(self, ok: bool, at: str) -> bool:
        """Returns whether the state changed. `since` is the first hit or miss of its run."""
        if self._missed == 0 or ok:
            self._run_since = at
        self._missed = 0 if ok else self._missed + 1
        state = HEALTHY if ok else UNHEALTHY if self._missed >= self._enough else self.state
        if state == self.state:
            return False
        self.state, self.since = state, self._run_since
        return True

    def forget(self) -> None:
        """Forget misses of the last attempt: they do not count for the next."""
        self._missed = 0


class _HealthState(Feature):
    """The state, in the status and in a signal when it changes."""

    def __init__(self, session: SessionPart, misses: int) -> None:
        self._session = session
        self._tally = Tally(misses)

    def facts(self) -> dict[str, Any]:
        return {"health": self._tally.state}

    def _count(self, ok: bool, evidence: str) -> None:
        before = self._tally.state
        if self._tally.take(ok, clock.now_text()):
            self._session.write_state()
            fields = {"state": self._tally.state, "evidence": evidence, "since": self._tally.since}
            # The first hit is expected: it is recorded, and wakes no reader.
            self._session.signals.emit("health", fields, routed=before is not None or not ok)


class Health(_HealthState):
    """A probe at long intervals; only a change is signalled. With `held` it waits for `release`: the command is ready,
    or waiting for that was given up."""

    def __init__(
        self, session: SessionWithProcesses, settings: dict[str, Any], environment: dict[str, str], *, held: bool
    ) -> None:
        super().__init__(session, settings["misses"])
        self._every_s = max(settings["interval"], LEAST_INTERVAL_S)
        if settings["interval"] < LEAST_INTERVAL_S:
            session.runner_log.warn(
                f"a health probe every {settings['interval']:g} s was raised to {LEAST_INTERVAL_S:g} s"
            )
        self._held = held
        self._runs = False
        self._alarm = Alarm(session.loop, self._try)
        self._probe: Port | Command | None = None
        probe, within_s = settings["probe"], min(ANSWER_S, self._every_s)
        try:
            if "command" in probe:
                self._probe = probes.Command(session, probe["command"], environment, within_s)
            else:
                owner_check = settings.get("owner_check", False)
                self._probe = probes.Port(session, probe, owner_check=owner_check, within_s=within_s)
        except (probes.BadProbe, BadPattern) as problem:
            session.runner_log.warn(f"no health probe: {problem}")

    def begin(self, attempt: int) -> None:
        self._runs = True
        self._tally.forget()
        if not self._held:
            self._arm(self._every_s)

    def release(self, _ready: bool = True) -> None:
        if self._runs:
            self._arm(0.0)

    def close(self) -> None:
        self._runs = False
        self._alarm.cancel()
        if self._probe is not None:
            self._probe.cancel()

    def _arm(self, delay_s: float) -> None:
        if self._probe is not None:
            self._alarm.set(delay_s)

    def _try(self) -> None:
        assert self._probe is not None
        self._probe.run(self._tried)

    def _tried(self, ok: bool, evidence: str) -> None:
        self._arm(self._every_s)
        self._count(ok, evidence)


class ReportedHealth(_HealthState):
    """Without a probe: healthy from a host's report that it is ready until the command ends without a request."""

    def __init__(self, session: SessionPart) -> None:
        super().__init__(session, misses=1)

    def release(self, ready: bool = True) -> None:
        evidence = "a host said that it is ready" if ready else "no host said in time that it is ready"
        self._count(ready, evidence)

    def pause(self) -> None:
        self._count(False, "the command ended")
