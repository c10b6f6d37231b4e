"""Write docs/faults.md: for each row of the fault list its tests, the job they need, and what came of their last run.

Results come from build/results.xml, which `make unit` leaves behind, and are kept for tests that were not in that run.
--check only says whether rows, tests and jobs are up to date.
"""

from __future__ import annotations

import re
import sys
import xml.etree.ElementTree as ET
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from support.promises import Claim

REPOSITORY = Path(__file__).resolve().parents[1]
PAGE = REPOSITORY / "docs" / "faults.md"
RESULTS = REPOSITORY / "build" / "results.xml"

_HEAD = """\
# Faults, their tests, and what came of them

Each row of the fault list, the tests that prove it, the job that has what they need, and the outcome and day of the
last run that `make docs` saw. What each test says is in [promises](promises.md). Written by `tools/faults_page.py`; do
not edit.

| row | test | job | last result |
| --- | --- | --- | --- |
"""
_ROW = re.compile(r"^[A-Z]{3}-\d+$")
_LINE = re.compile(r"^\| [A-Z]{3}-\d+ \| `([^`]+)` \| [^|]+ \| ([^|]+) \|$", re.MULTILINE)
_NEVER = "not run yet"
# Which job has a lever; all others are to be had everywhere.
_JOBS = {
    "root": "root",
    "setpriv": "root",
    "pids-group": "root",
    "service-group": "root",
    "cgroup": "root",
    "non-root": "non-root",
    "namespaces": "namespaces",
    "time-namespace": "namespaces",
    "systemd": "systemd",
}


def page(claims: list[Claim], results: dict[str, str]) -> str:
    lines = [
        f"| {claim.id} | `{claim.test}` | {_job(claim.needs)} | {results.get(claim.test, _NEVER)} |\n"
        for claim in claims
        if _ROW.match(claim.id)
    ]
    return _HEAD + "".join(dict.fromkeys(lines))


def told(text: str) -> dict[str, str]:
    """The results that a page tells, by test."""
    return {test: result for test, result in _LINE.findall(text) if result != _NEVER}


def of_run(path: Path) -> dict[str, str]:
    """What a report of pytest says of each test function, all its parameters together."""
    counts: dict[str, Counter[str]] = {}
    days: dict[str, str] = {}
    for suite in ET.parse(path).getroot().iter("testsuite"):
        for case in suite.iter("testcase"):
            module = case.get("classname", "").removeprefix("tests.").replace(".", "/")
            test = f"{module}.py::{case.get('name', '').partition('[')[0]}"
            counts.setdefault(test, Counter())[_outcome(case)] += 1
            days[test] = suite.get("timestamp", "")[:10]
    return {test: f"{_summed(count)}, {days[test]}" for test, count in counts.items()}


def _outcome(case: ET.Element) -> str:
    for word in ("failure", "error", "skipped"):
        if case.find(word) is not None:
            return "skipped" if word == "skipped" else "failed"
    return "passed"


def _summed(count: Counter[str]) -> str:
    return ", ".join(f"{count[word]} {word}" for word in ("failed", "passed", "skipped") if count[word])


def _job(needs: tuple[str, ...]) -> str:
    return ", ".join(dict.fromkeys(_JOBS[lever] for lever in needs if lever in _JOBS)) or "every"


def main(arguments: list[str]) -> int:
    sys.path.insert(0, str(REPOSITORY / "tests"))
    from support import promises

    stands = PAGE.read_text() if PAGE.exists() else ""
    results = told(stands)
    if arguments == ["--check"]:
        if page(promises.claims(), results) == stands:
            return 0
        print("docs/faults.md is out of date: run tools/faults_page.py", file=sys.stderr)
        return 1
    if RESULTS.exists():
        results.update(of_run(RESULTS))
    PAGE.write_text(page(promises.claims(), results))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
