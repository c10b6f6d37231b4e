"""Counters, and the text of `/metrics` (Prometheus 0.0.4).

Label values come from closed sets: routes are templates, and no session, name, owner or consumer is a label.
"""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

from .. import __version__
from ..core.clock import now_text
from ..core.signalfile import VARIANTS
from ..model import CAUSES, STATES, UNREACHABLE
from ..places.kinds import KINDS, LOCAL

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from ..model import Snapshot
    from ..sessions.aio import AsyncHoldfast


MEDIA_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_BUCKETS = (0.005, 0.025, 0.1, 0.5, 2.0, 10.0)
_PLACES = (LOCAL, *KINDS, "other")
_VARIANTS = (*VARIANTS, "other")
_PAGE = 500

# Name, type, help, and the label of a family with the values that it always has.
_FAMILIES: dict[str, tuple[str, str, str, tuple[str, ...]]] = {
    "sessions_started_total": ("counter", "Sessions that were started, as far as this server saw them.", "", ()),
    "sessions_ended_total": ("counter", "Sessions that ended, by cause.", "cause", CAUSES),
    "log_dropped_bytes_total": ("counter", "Bytes of logs that caps removed.", "", ()),
    "index_repairs_total": ("counter", "How often the index was found to be damaged or replaced.", "", ()),
    "signals_total": ("counter", "Signals that were recorded.", "variant", _VARIANTS),
    "ws_sent_bytes_total": ("counter", "Bytes of output sent to attached clients.", "", ()),
    "ws_skips_total": ("counter", "How often an attached client was too far behind.", "", ()),
    "sse_resets_total": (
        "counter",
        "Resets sent to readers of events.",
        "reason",
        ("new_generation", "too_old", "overflow"),
    ),
    "auth_failures_total": (
        "counter",
        "Refused requests.",
        "reason",
        ("no_token", "wrong_token", "wrong_ticket", "wrong_code", "bad_origin", "scope_missing", "wrong_host"),
    ),
    "tickets_total": ("counter", "Tickets.", "result", ("issued", "used", "refused")),
    "input_bytes_total": ("counter", "Bytes of input that were accepted.", "author_kind", ("web",)),
}


class _Histogram:
    def __init__(self) -> None:
        self.counts = [0] * (len(_BUCKETS) + 1)
        self.sum = 0.0

    def add(self, value: float) -> None:
        self.counts[next((at for at, bound in enumerate(_BUCKETS) if value <= bound), len(_BUCKETS))] += 1
        self.sum += value

    def lines(self, name: str, labels: str) -> Iterator[str]:
        total = 0
        for bound, count in zip((*map(str, _BUCKETS), "+Inf"), self.counts, strict=True):
            total += count
            yield f'{name}_bucket{{{labels}{"," if labels else ""}le="{bound}"}} {total}'
        shown = f"{{{labels}}}" if labels else ""
        yield f"{name}_sum{shown} {self.sum:.6f}"
        yield f"{name}_count{shown} {total}"


class Metrics:
    def __init__(self) -> None:
        self._counters: dict[str, dict[str, int]] = {
            name: dict.fromkeys(values or ("",), 0) for name, (_, _, _, values) in _FAMILIES.items()
        }
        self._requests: dict[tuple[str, str, int], int] = {}
        self._times: dict[str, _Histogram] = {}
        self._delays = _Histogram()
        # How many are connected now, by transport and role.
        self.clients: dict[tuple[str, str], int] = {("ws", "control"): 0, ("ws", "observe"): 0, ("sse", "observe"): 0}
        # Counters begin with the server: what happened before is not counted.
        self._began = now_text()
        # Sessions that were counted already: how much of their logs was dropped, and which have ended.
        self._dropped: dict[str, int] = {}
        self._ended: set[str] = set()
        self._generation: str | None = None
        # Of the last signal that was counted.
        self._position: int | None = None

    def add(self, name: str, label: str = "", count: int = 1) -> None:
        family = self._counters[name]
        family[label if label in family else "other"] += count

    def request(self, route: str, method: str, status: int, took_s: float) -> None:
        key = (route, method, status)
        self._requests[key] = self._requests.get(key, 0) + 1
        self._times.setdefault(route, _Histogram()).add(took_s)

    def delivered(self, at_s: float | None) -> None:
        """A signal was sent to a reader of events."""
        if at_s is not None:
            self._delays.add(max(0.0, time.time() - at_s))

    async def text(self, hf: AsyncHoldfast) -> str:
        shots = await hf.sessions(all=True)
        generation = hf._core.index.generation()
        await self._count_signals(hf, generation)
        self._count(shots, generation)
        pending = sum(each["waiting"] for each in hf._core.consumers.known())
        free = os.statvfs(hf.home.path)
        lines = list(_gauge("build_info", "The version.", [(f'version="{__version__}"', 1)]))
        by_place = dict.fromkeys(((state, place) for state in STATES for place in _PLACES), 0)
        for shot in shots:
            kind = shot.place.partition(":")[0]
            by_place[shot.state, kind if kind in _PLACES else "other"] += 1
        rows = [(f'state="{state}",place="{place}"', count) for (state, place), count in by_place.items()]
        lines += _gauge("sessions", "Sessions that are retained.", rows)
        unreachable = sum(shot.state == UNREACHABLE for shot in shots)
        lines += _gauge("runners_unreachable", "Runners that do not answer.", [("", unreachable)])
        lines += _gauge("log_bytes", "Bytes of all logs.", [("", sum(shot.log_bytes for shot in shots))])
        lines += _gauge("home_free_bytes", "Free space of the home.", [("", free.f_bavail * free.f_frsize)])
        lines += _gauge("signals_pending", "Signals that wait for a consumer.", [("", pending)])
        clients = [(f'transport="{way}",role="{role}"', count) for (way, role), count in self.clients.items()]
        lines += _gauge("clients", "Clients that are connected.", clients)
        for name, (kind, help, label, _) in _FAMILIES.items():
            counts = [(f'{label}="{value}"' if label else "", count) for value, count in self._counters[name].items()]
            lines += _gauge(name, help, counts, kind)
        asked = [
            (f'route="{route}",method="{method}",code="{code}"', n)
            for (route, method, code), n in self._requests.items()
        ]
        lines += _gauge("http_requests_total", "Requests.", asked, "counter")
        lines += _head("signal_delay_seconds", "From a signal to its event.", "histogram")
        lines += self._delays.lines("holdfast_signal_delay_seconds", "")
        lines += _head("http_request_seconds", "How long requests took.", "histogram")
        for route, times in self._times.items():
            lines += times.lines("holdfast_http_request_seconds", f'route="{route}"')
        return "\n".join([*lines, ""])

    async def _count_signals(self, hf: AsyncHoldfast, generation: str | None) -> None:
        """Those that came since the last time; at the first time, and in a new index, from now on."""
        listing = hf._core.consumers.listing()
        await listing.look()
        newest = await listing.newest()
        at = self._position if self._generation == generation else newest
        while at is not None and at < newest:
            found, at = await listing.after(at, _PAGE)
            for each in found:
                self.add("signals_total", each.signal.variant)
        self._position = newest

    def _count(self, shots: Iterable[Snapshot], generation: str | None) -> None:
        if self._generation not in (None, generation):
            self.add("index_repairs_total")
        self._generation = generation
        dropped = {shot.id: sum(shot.dropped_before.values()) for shot in shots}
        for shot in shots:
            is_new, is_ours = shot.id not in self._dropped, (shot.created_at or "") >= self._began
            self.add("sessions_started_total", count=is_new and is_ours)
            if not is_new or is_ours:
                self.add("log_dropped_bytes_total", count=dropped[shot.id] - self._dropped.get(shot.id, 0))
            if shot.exit is not None and shot.id not in self._ended:
                self._ended.add(shot.id)
                cause = shot.exit.cause if shot.exit.cause in CAUSES else "lost"
                self.add("sessions_ended_total", cause, (shot.ended_at or "") >= self._began)
        self._dropped = dropped
        self._ended &= dropped.keys()


def _head(name: str, help: str, kind: str) -> list[str]:
    return [f"# HELP holdfast_{name} {help}", f"# TYPE holdfast_{name} {kind}"]


def _gauge(name: str, help: str, rows: Iterable[tuple[str, int]], kind: str = "gauge") -> list[str]:
    shown = [f"holdfast_{name}{f'{{{labels}}}' if labels else ''} {value}" for labels, value in rows]
    return [*_head(name, help, kind), *shown]
