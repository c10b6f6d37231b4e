"""What a session was asked to be attentive to: each a small part with the same shape, there only when asked for.

`begin(attempt)` when a command was spawned, `heard(stream, size)` when the log grew, `pause()` between two attempts,
`finish()` before the ending is told, `facts()` for the status, `close()` at the end.
"""

from __future__ import annotations

from .health import Health, ToldHealth
from .monitor import Monitor
from .needs_input import NeedsInput
from .people import People
from .pulse import Heartbeat, SoftDeadline
from .readiness import Ready
from .watch import Watch

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .life import Life


class Features:
    def __init__(self, life: Life) -> None:
        self._life = life
        spec = life.spec
        self._watch = Watch(life, spec["watch"]) if spec.get("watch") else None
        self._watches = len(spec["watch"]["patterns"]) if spec.get("watch") else 0
        self._monitor = Monitor(life, spec["monitor"]) if spec.get("monitor") else None
        self._ready = Ready(life, spec["ready"], self._known_ready) if spec.get("ready") else None
        self._health = _health(life, held=self._ready is not None) if spec.get("health") else None
        self._heartbeat = Heartbeat(life, spec["heartbeat"]) if spec.get("heartbeat") else None
        self._soft = SoftDeadline(life, spec["soft"], life.asked) if spec.get("soft") else None
        asks = bool(spec["tty"]) or spec["stdin"] == "open"
        self._needs_input = NeedsInput(life) if asks else None
        self._people = (
            People(life.home, spec["people"], life.host_environment, life.diary.say) if spec.get("people") else None
        )
        # The monitor last: its closing event is what comes right before the ending.
        parts = (
            *(self._watch, self._ready, self._health, self._heartbeat),
            *(self._soft, self._needs_input, self._monitor),
        )
        self._all: list[Any] = [part for part in parts if part is not None]
        # Is anybody there who wants to hear of output? Asked at every read.
        self.listen = bool(self._all)
        # Whether the command of this attempt became ready, once that is known.
        self.ready: bool | None = None

    def begin(self) -> None:
        self.ready = None
        for part in self._all:
            part.begin(self._life.attempt.number)

    def heard(self, stream: str, size: int) -> None:
        for part in self._all:
            part.heard(stream, size)

    def typed(self, data: bytes) -> None:
        """This is being written to the terminal: its echo is nobody's output."""
        if self._watch is not None:
            self._watch.typed(data)

    def watch(self, pattern: dict[str, Any], limits: dict[str, Any]) -> str:
        """Look for this too; `limits` are those of a session that watched for nothing before. Its id."""
        if self._watch is None:
            self._watch = Watch(self._life, {**limits, "patterns": []})
            self._all.insert(0, self._watch)
            self.listen = True
            self._watch.begin(self._life.attempt.number)
        self._watches += 1
        id = f"w{self._watches}"
        self._watch.add({**pattern, "id": id})
        return id

    def unwatch(self, id: str) -> bool:
        return self._watch is not None and self._watch.remove(id)

    def routed(self, variant: str, record: dict[str, Any]) -> None:
        """A record is in the queue."""
        if self._people is not None:
            self._people.called(variant, record, self._life.now("notify_people"))

    def told_ready(self) -> None:
        """A host says that the command is ready."""
        if self._ready is not None:
            self._ready.told()

    def _known_ready(self, ok: bool) -> None:
        self.ready = ok
        if ok and self._life.restarts is not None:
            self._life.restarts.was_ready()
        if self._health is not None:
            self._health.release(ok)

    def changed(self, changes: dict[str, Any]) -> None:
        """An `update` was taken."""
        if "soft" in changes and self._life.exit is None:
            if self._soft is None and changes["soft"] is not None:
                self._soft = SoftDeadline(self._life, changes["soft"], self._life.attempt.began)
                self._all.append(self._soft)
            elif self._soft is not None:
                self._soft.set(changes["soft"])

    def pause(self) -> None:
        """The command is gone, and comes again."""
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
        """What the exit record keeps of them beside that."""
        facts = self.facts()
        return {name: facts[name] for name in ("monitor", "health") if name in facts}

    def ended(self) -> dict[str, Any]:
        """What the record of the ending says of them."""
        told = (self._watch, self._monitor)
        return {name: value for part in told if part is not None for name, value in part.ended().items()}

    def close(self) -> None:
        for part in self._all:
            part.close()


def _health(life: Life, *, held: bool) -> Health | ToldHealth:
    settings = life.spec["health"]
    if settings["probe"].get("told"):
        return ToldHealth(life)
    return Health(life, settings, life.environment, held=held)
