"""`python -m bench [B1 B7 ...]`: measure all rows, or those named, and write them down."""

from __future__ import annotations

import os
import shutil
import sys
import time

from . import crowd, logs, nodes, page, report, signals, start, stream, terminal, viewers, watching
from .place import forget_places

# Users have compiled modules: programs that are started here compile each once, too.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

GROUPS = (start, stream, crowd, logs, terminal, watching, viewers, signals, page, nodes)
PEERS = ("tmux", "dtach", "screen", "supervisord")


def main(wanted: list[str]) -> int:
    known = [id for group in GROUPS for id in group.ROWS]
    unknown = sorted(set(wanted) - set(known))
    if unknown:
        sys.exit(f"no row {', '.join(unknown)}; there are {', '.join(known)}")
    missing = [peer for peer in PEERS if shutil.which(peer, path=_path()) is None]
    if missing:
        sys.exit(f"missing: {', '.join(missing)}; `tools/system-packages.sh bench` installs what we compare against")
    rows: list[report.Row] = []
    failed: dict[str, str] = {}
    for group in GROUPS:
        for id, measure in group.ROWS.items():
            if wanted and id not in wanted:
                continue
            began = time.monotonic()
            try:
                measured = measure()
            except Exception as problem:  # noqa: BLE001  the other rows are still worth having
                failed[id] = f"{type(problem).__name__}: {problem}"
                report.say(f"{id:4} FAILED: {failed[id]}")
                continue
            rows += measured
            for row in measured:
                report.say(report.line(row))
            report.say(f"     ({time.monotonic() - began:.0f} s)")
    forget_places()
    report.write(rows, failed)
    return 1 if failed else 0


def _path() -> str:
    return os.environ.get("PATH", os.defpath) + ":/usr/sbin:/sbin"


sys.exit(main(sys.argv[1:]))
