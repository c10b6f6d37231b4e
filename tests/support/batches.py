"""Signals as a claim would give them, made without any session."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from holdfast.signals.lines import Signal

AT = "2026-08-01T09:14:07.412Z"


class Teller:
    """One session that tells things. Every method gives the next signal of it."""

    def __init__(self, id: str | None = "b7k2m9qa1", kind: str | None = "local_bash", **snapshot: Any) -> None:
        self.id = id
        self.kind = kind
        self.seq = 0
        self.snapshot = {
            "name": "make test",
            "command": "make test",
            "pid": 4711,
            "started_at": "2026-08-01T09:10:55.000Z",
            "ends": {"stdout": 5000, "stderr": 300},
            "dropped_before": {"stdout": 0, "stderr": 0},
            **snapshot,
        }

    def tell(self, variant: str, *, replayed: bool = False, deliveries: int = 1, **fields: Any) -> Signal:
        self.seq += 1
        record = {
            "v": 1,
            "id": f"{self.id or 'home'}.{self.seq}",
            "seq": self.seq,
            "session": self.id,
            "kind": self.kind,
            "owner": "conv-17",
            "attempt": 1,
            "at": AT,
            "mono_ns": 81234567890 + self.seq,
            "boot": "5f2c9e01",
            "routed": True,
            "snapshot": self.snapshot,
            variant: fields,
        }
        return Signal(record, replayed=replayed, deliveries=deliveries)

    def ended(
        self, code: int | None = 0, *, cause: str = "exit", again: dict[str, Any] | None = None, **fields: Any
    ) -> Signal:
        status = "completed" if code == 0 and cause == "exit" else "failed"
        if cause in ("stop", "overall_timeout", "idle_timeout", "ttl", "owner_gone"):
            status = "killed"
        told = {
            "phase": "ended",
            "status": status,
            "code": code,
            "signal": None,
            "cause": cause,
            "by": None,
            "duration_s": 192.4,
            "output_complete": True,
            "ends": self.snapshot["ends"],
            "tail": {},
            **fields,
        }
        return self.tell("lifecycle", **told, **(again or {}))

    def event(
        self, *texts: str, suppressed: int = 0, cursor: str | None = None, closing: bool = False, **fields: Any
    ) -> Signal:
        at = fields.pop("offset", 0)
        stream = fields.pop("stream", "stdout")
        lines = []
        for text in texts:
            lines.append({"text": text, "stream": stream, "offset": at, "part": 0})
            at += len(text.encode("utf-8", "replace")) + 1
        told = {"count": len(lines) + suppressed, "suppressed": suppressed, "level": "live", "cursor": cursor}
        return self.tell("event", lines=lines, **{**told, "closing": closing, **fields})

    def watch(self, *lines: str, **fields: Any) -> Signal:
        told = {"pattern": "w1", "text": "ERROR", "stream": "stderr", "offset": 18234, "more": 0, "suppressed": 0}
        return self.tell("watch", lines=list(lines), **{**told, "hits": 1, **fields})


def tail(*lines: str, offset: int = 0, cut: bool = False) -> dict[str, Any]:
    return {"text": "\n".join(lines), "offset": offset, "cut": cut}


def one_of_each() -> Iterator[Signal]:
    """Every variant there is, each of a session of its own."""
    ids = (f"b{number:08d}" for number in range(100))

    def session(kind: str = "local_bash", **snapshot: Any) -> Teller:
        return Teller(next(ids), kind, **snapshot)

    yield session().ended(2, tail={"stderr": tail("E   assert 1 == 2"), "stdout": tail("collected 3", "F..")})
    yield session().ended(0, tail={"stdout": tail("all good")})
    yield session().ended(None, cause="stop", signal="SIGTERM", by="conv-17", tail={})
    yield session().ended(None, cause="overall_timeout", signal="SIGKILL", by="limit", limit_s=300)
    yield session().ended(None, cause="out_of_memory", signal="SIGKILL")
    yield session().ended(None, cause="lost", output_complete=False)
    yield session().ended(None, cause="spawn_error", error={"message": "no such file: mkae"}, ends={})
    yield session("monitor").event("rolled out", closing=True)
    yield session("monitor").ended(0, events={"count": 212, "suppressed": 3})
    yield session("lsp", metadata={"server": "pyright", "state": "error", "failed_starts": 3, "max_restarts": 3}).ended(
        1
    )
    yield session("local_agent", metadata={"summary": "found the bug\nin parser.py", "error": ""}).ended(0)
    yield session("local_agent", metadata={"error": "[subagent crushed]"}).ended(1)
    yield session().tell(
        "lifecycle", phase="restarting", code=1, cause="exit", retry_in_s=2.0, count=3, status="failed"
    )
    yield session().tell("lifecycle", phase="started")
    yield session().watch("ERROR: disk full", more=2, suppressed=4)
    yield session().tell("watch_disabled", reason="strikes", hits=3, suppressed=120, promoted=True)
    yield session().tell(
        "heartbeat",
        n=3,
        interval_s=60.0,
        elapsed_s=600,
        new_bytes=400,
        new_lines=12,
        tail="at 40 %",
        stream="stdout",
        offset=4000,
    )
    yield session().tell(
        "needs_input",
        kind="secret",
        confidence="high",
        evidence=["echo_off", "blocked_read"],
        line="Password for deploy: ",
        offset=5000,
        secret=True,
        since=AT,
    )
    yield session().tell("deadline", limit_s=300, elapsed_s=600.2, hard_in_s=1200, n=2)
    yield session().tell("ready", ok=True, probe="port", detail="127.0.0.1:3000", after_s=3.2)
    yield session().tell("ready", ok=False, probe="port", detail="port 3000 is held by pid 12", after_s=60)
    yield session().tell("health", state="unhealthy", evidence="GET /health: 503", since=AT)
    yield session().tell("health", state="stale", evidence=None, since=None)
    gap: dict[str, Any] = {"stream": "stdout", "from": 812, "reason": "No space left on device"}
    yield session().tell("gap", **gap)
    yield session().tell(
        "survivors", pids=[{"pid": 99, "start": 1, "command": "sleep 300"}], after="exit", holds=["stdout"]
    )
    yield session().tell("telepathy", message="from a later release", level=3)
    home = Teller(None, None)
    yield home.tell("overflow", state="tripped", scope="owner", until=AT, suppressed=1, sessions=[], more_sessions=0)
    yield home.tell(
        "overflow",
        state="released",
        scope="owner",
        until=AT,
        suppressed=5,
        sessions=[{"id": "b00000001", "matches": 5, "first": "ERROR", "stream": "stderr", "offset": 12}],
        more_sessions=2,
    )
