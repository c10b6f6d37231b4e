"""The features of one session: made from its spec, loaded only when it asks for them.

`watch` and `soft` can be added later by a request, when the files of this release may be gone: they are always loaded.
"""

from __future__ import annotations

from . import Feature
from .timers import Heartbeat, SoftDeadline
from .watch import Watch

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ..session import Session
    from .monitor import Monitor
    from .readiness import Health, Ready, ReportedHealth


class FeatureSet:
    def __init__(self, session: Session) -> None:
        self._session = session
        spec = session.spec
        self._watch = Watch(session, spec["watch"]) if spec.get("watch") else None
        self._watches = len(spec["watch"]["patterns"]) if spec.get("watch") else 0
        self._soft = SoftDeadline(session, spec["soft"], session.requested_at) if spec.get("soft") else None
        self._monitor: Monitor | None = None
        self._ready: Ready | None = None
        self._health: Health | ReportedHealth | None = None
        # True if the command of this attempt became ready, None until that is known.
        self.ready: bool | None = None
        self._all: list[Feature] = [] if self._watch is None else [self._watch]
        if spec.get("ready") or spec.get("health"):
            self._load_readiness()
        if spec.get("heartbeat"):
            self._all.append(Heartbeat(session, spec["heartbeat"]))
        if self._soft is not None:
            self._all.append(self._soft)
        if spec["tty"] or spec["stdin"] == "open":
            from .needs_input.feature import NeedsInput

            self._all.append(NeedsInput(session))
        if spec.get("monitor"):
            from .monitor import Monitor

            # The last: its closing event comes right before the ending.
            self._monitor = Monitor(session, spec["monitor"])
            self._all.append(self._monitor)

    def _load_readiness(self) -> None:
        from .readiness import Health, Ready, ReportedHealth

        session, spec = self._session, self._session.spec
        if spec.get("ready"):
            self._ready = Ready(session, spec["ready"], self._readiness_known)
            self._all.append(self._ready)
        if not spec.get("health"):
            return
        if spec["health"]["probe"].get("told"):
            self._health = ReportedHealth(session)
        else:
            self._health = Health(session, spec["health"], session.environment, held=self._ready is not None)
        self._all.append(self._health)

    def begin(self) -> None:
        self.ready = None
        for part in self._all:
            part.begin(self._session.attempt.number)

    def on_output(self, stream: str) -> None:
        for part in self._all:
            part.on_output(stream)

    def typed(self, data: bytes) -> None:
        """This text is being written to the terminal: its echo is not output of the command."""
        if self._watch is not None:
            self._watch.typed(data)

    def watch(self, pattern: dict[str, Any], limits: dict[str, Any]) -> str:
        """Add a pattern; `limits` are for a session that had none. Returns its id."""
        if self._watch is None:
            self._watch = Watch(self._session, {**limits, "patterns": []})
            self._all.insert(0, self._watch)
            self._watch.begin(self._session.attempt.number)
        self._watches += 1
        id = f"w{self._watches}"
        self._watch.add({**pattern, "id": id})
        return id

    def unwatch(self, id: str) -> bool:
        return self._watch is not None and self._watch.remove(id)

    def report_ready(self) -> None:
        """A host says that the command is ready."""
        if self._ready is not None:
            self._ready.report()

    def _readiness_known(self, ok: bool) -> None:
        self.ready = ok
        if ok and self._session.restarts is not None:
            self._session.restarts.was_ready()
        if self._health is not None:
            self._health.release(ok)

    def changed(self, changes: dict[str, Any]) -> None:
        """An `update` was accepted."""
        if "soft" in changes and self._session.exit is None:
            if self._soft is None and changes["soft"] is not None:
                self._soft = SoftDeadline(self._session, changes["soft"], self._session.attempt.began)
                self._all.append(self._soft)
            elif self._soft is not None:
                self._soft.set(changes["soft"])

    def pause(self) -> None:
        for part in self._all:
            part.pause()

    def finish(self) -> None:
        for part in self._all:
            part.finish()

    def facts(self) -> dict[str, Any]:
        facts: dict[str, Any] = {}
        for part in self._all:
            facts.update(part.facts())
        return facts

    def last(self) -> dict[str, Any]:
        """What the exit record keeps of `facts`."""
        facts = self.facts()
        return {name: facts[name] for name in ("monitor", "health") if name in facts}

    def ended(self) -> dict[str, Any]:
        """What the signal of the end and the exit record say of them."""
        counting = (self._watch, self._monitor)
        return {name: value for part in counting if part is not None for name, value in part.ended().items()}

    def close(self) -> None:
        for part in self._all:
            part.close()
