"""A watched session over a real log: what it prints, and what that makes its watch tell."""

from __future__ import annotations

import json
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from holdfast.runner.watch import Watch
from support.still_life import Clock, still_life

BREAKER = {"scope": "owner", "max": 15, "window": 10.0, "cooldown": 30.0}


def pattern(number: int, given: str | dict[str, Any]) -> dict[str, Any]:
    parts = {"literal": given} if isinstance(given, str) else given
    return {"id": f"w{number}", "stream": "any", "ignore_case": False, "once": False, "before": 0, **parts}


class Watched:
    """A session that is watched: what it prints, and what that makes the watch tell."""

    def __init__(
        self,
        life: Any,
        home: Path,
        session: str,
        patterns: tuple[str | dict[str, Any], ...],
        lifetime: int = 1 << 53,
    ) -> None:
        self.life = life
        self.clock: Clock = life.loop
        self.states: list[str | None] = []
        life.spec.update({"id": session, "endpoint": str(home / "run" / "socket"), "owner": session, "notify": "never"})
        self.life.home = str(home)
        self.life.here = {"boot": "boot"}
        self.life.changed = {}
        self.life.write_state = lambda: self.states.append(self.life.changed.get("notify"))
        self.life.people_called = lambda _variant, _record: None
        self.life.now = lambda name: self.life.changed.get(name, life.spec[name])
        self.watch = Watch(
            self.life,
            {
                "patterns": [pattern(number, each) for number, each in enumerate(patterns, 1)],
                "interval": 15.0,
                "strikes": 3,
                "lifetime": lifetime,
                "gather_ms": 100,
                "partial_ms": 500,
                "breaker": BREAKER,
            },
            now=lambda: self.clock.now,
        )
        life.features.append(self.watch)
        self.watch.begin(1)

    def prints(self, text: str | bytes, stream: str = "stdout", *, then_s: float = 0.0) -> None:
        self.life.prints(text, stream)
        self.clock.pass_by(then_s)

    def ends(self) -> dict[str, int]:
        self.watch.finish()
        ended: dict[str, int] = self.watch.ended()["watch"]
        self.watch.close()
        return ended

    @property
    def told(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.life.told("watch")
        return found

    @property
    def disabled(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.life.told("watch_disabled")
        return found

    def times(self, variant: str = "watch") -> list[float]:
        """Of the matches, without the wait for neighbours."""
        return [round(at - 0.1, 3) for at in self.life.times(variant)]


class Stage:
    def __init__(self, path: Path, stack: ExitStack) -> None:
        self.path = path
        self._stack = stack
        self._count = 0

    def watch(
        self,
        *patterns: str | dict[str, Any],
        tty: bool = False,
        cap_bytes: int = 64 << 20,
        lifetime: int = 1 << 53,
    ) -> Watched:
        self._count += 1
        directory = self.path / f"session{self._count}"
        directory.mkdir()
        streams = ("tty",) if tty else ("stdout", "stderr")
        life = self._stack.enter_context(still_life(directory, streams=streams, cap_bytes=cap_bytes))
        return Watched(life, self.path, f"b{self._count}", patterns, lifetime)

    def crowd(self, size: int) -> list[Watched]:
        """Sessions of one owner."""
        crowd = [self.watch("ERROR") for _ in range(size)]
        for watched in crowd:
            watched.life.spec["owner"] = "conv-1"
        return crowd

    def overflows(self) -> list[dict[str, Any]]:
        file = self.path / "signals.jsonl"
        return [json.loads(line)["overflow"] for line in file.read_text().splitlines()] if file.exists() else []
