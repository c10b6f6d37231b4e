"""An object of the host, of a kind that only tests have."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from holdfast.tools.evva import DaemonSnapshot

OWNER = "agent-7"
BEGAN = datetime(2026, 1, 31, 8, tzinfo=UTC)


class Own:
    def __init__(self, id: str, *, kind: str = "webcam", after: int = 0, problem: Exception | None = None) -> None:
        self.id = id
        self.kind = kind
        self.status = "running"
        self.kills = 0
        self.blind = False
        self._at = BEGAN + timedelta(seconds=after)
        self._problem = problem

    def snapshot(self) -> DaemonSnapshot:
        if self.blind:
            raise RuntimeError("a daemon of the test cannot say what it is")
        return DaemonSnapshot(self.id, self.kind, self.status, f"the {self.kind}", OWNER, self._at)

    def kill(self) -> None:
        self.kills += 1
        if self._problem is not None:
            raise self._problem
        self.status = "killed"

    def output(self) -> str:
        return "a picture\n"
