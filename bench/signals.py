"""B17: draining signals while thousands of finished sessions stand in the index."""

from __future__ import annotations

import os
import shutil
import time

import holdfast
from holdfast.core import records
from holdfast.home import new_id
from holdfast.sessions.api import Holdfast

from .measure import Spread, interleaved, ratio
from .place import place
from .report import Against, Row
from .stream import forget

_FEW, _MANY = 10, 10_000
_SIGNALS = 100
_OWNER = "bench"


def drain() -> list[Row]:
    with place() as here, holdfast.open(here.file("few")) as small, holdfast.open(here.file("many")) as large:
        for hf, count in ((small, _FEW), (large, _MANY)):
            fill(hf, count)
        figures = interleaved({"few": lambda: _drain(small), "many": lambda: _drain(large)}, 11)
        took = Spread.of(figures["many"]).median * 1e3
        against = [Against(f"itself with {_FEW}", ratio(figures["many"], figures["few"]), at_most=1.5)]
        what = f"drain {_SIGNALS} signals with {_MANY:,} finished sessions in the index"
        return [Row("B17", what, f"{took:.1f} ms", against)]


def fill(hf: Holdfast, count: int) -> None:
    """Finished sessions: one real one, copied under other ids, looked at and settled as any other."""
    first = hf.run("true", notify="exit", owner=_OWNER)
    source = hf.home.session(first.id)
    spec = records.read(os.path.join(source, "spec.json"))
    spec.pop("check", None)
    for _ in range(count - 1):
        id = new_id("local_bash")
        copy = hf.home.session(id)
        shutil.copytree(source, copy)
        directory = os.open(copy, os.O_RDONLY | os.O_DIRECTORY)
        try:
            records.write(directory, "spec.json", {**spec, "id": id})
        finally:
            os.close(directory)
        signals = os.path.join(copy, "signals.jsonl")
        with open(signals) as file:
            told = file.read()
        with open(signals, "w") as file:
            file.write(told.replace(first.id, id))
    found = len(hf.sessions(all=True))
    if found != count:
        raise AssertionError(f"{found} of {count} sessions are listed")
    while hf.signals(_OWNER).pending():
        with hf.signals(_OWNER).claim():
            pass


def _drain(hf: Holdfast) -> float:
    ended = [hf.run("true", notify="exit", owner=_OWNER).id for _ in range(_SIGNALS)]
    inbox = hf.signals(_OWNER)
    began = time.perf_counter()
    with inbox.drain() as notice:
        took = time.perf_counter() - began
    if len(notice.ids) != _SIGNALS:
        raise AssertionError(f"{len(notice.ids)} of {_SIGNALS} signals were drained")
    for id in ended:
        forget(hf, id)
    return took


ROWS = {"B17": drain}
