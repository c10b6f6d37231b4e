"""Write docs/promises.md and docs/faults.md from the covers marks of the tests.

    promises_page.py                    write both pages
    promises_page.py --check            say whether they are up to date
    promises_page.py --results REPORT   write build/faults.md: the fault list with the results of this run of pytest.

The last one ends with 1 when a row has a failed test or, unless its tests all belong to another job, none that passed.
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
PROMISES = REPOSITORY / "docs" / "promises.md"
FAULTS = REPOSITORY / "docs" / "faults.md"
RESULTS = REPOSITORY / "build" / "faults.md"

_PROMISES_HEAD = """\
# Promises and their tests

One line for each proven promise: rows of the fault list (`KIL-04`), acceptance items (`native:2`).
Written by `tools/promises_page.py` from the `covers` marks; do not edit.

| promise | tests |
| --- | --- |
"""
_FAULTS_HEAD = """\
# Faults and their tests

Each row of the fault list, the tests that prove it, and the job that has what they need. What each test says is in
[promises](promises.md). Written by `tools/promises_page.py` from the `covers` marks; do not edit. `make test` writes
the same table with the results of that run to `build/faults.md`.

| row | test | job |
| --- | --- | --- |
"""
_RESULTS_HEAD = """\
# Faults and the results of their tests

| row | test | job | result |
| --- | --- | --- | --- |
"""
_ROW = re.compile(r"^[A-Z]{3}-\d+$")
# Which job has a lever; all others are available everywhere.
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


def promises_page(claims: list[Claim]) -> str:
    by_id: dict[str, list[str]] = {}
    for claim in claims:
        tests = by_id.setdefault(claim.id, [])
        entry = f"`{claim.test}`: {claim.says}"
        if entry not in tests:
            tests.append(entry)
    return _PROMISES_HEAD + "".join(f"| {id} | {'<br>'.join(tests)} |\n" for id, tests in by_id.items())


def faults_page(claims: list[Claim]) -> str:
    return _FAULTS_HEAD + "".join(f"| {id} | `{test}` | {job} |\n" for id, test, job in _rows(claims))


def results_page(claims: list[Claim], results: dict[str, Counter[str]]) -> str:
    lines = (f"| {id} | `{test}` | {job} | {_summed(results.get(test))} |\n" for id, test, job in _rows(claims))
    return _RESULTS_HEAD + "".join(lines)


def problems(claims: list[Claim], results: dict[str, Counter[str]]) -> list[str]:
    """What this run has not proven. A row whose tests were all skipped here as those of another job is not named."""
    found = []
    open_rows: dict[str, bool] = {}
    for id, test, job in _rows(claims):
        count = results.get(test, Counter())
        if count["failed"]:
            found.append(f"{id}: {test}: {_summed(count)}")
        elsewhere = job != "every" and set(count) == {"skipped"}
        open_rows[id] = open_rows.get(id, True) and not count["passed"] and not elsewhere
    return found + [f"{id}: no test of it has passed" for id, is_open in open_rows.items() if is_open]


def read_results(report: Path) -> dict[str, Counter[str]]:
    """How often each test function passed, failed and was skipped, from a junit report of pytest."""
    counts: dict[str, Counter[str]] = {}
    for case in ET.parse(report).getroot().iter("testcase"):
        module = case.get("classname", "").removeprefix("tests.").replace(".", "/")
        test = f"{module}.py::{case.get('name', '').partition('[')[0]}"
        counts.setdefault(test, Counter())[_outcome(case)] += 1
    return counts


def _rows(claims: list[Claim]) -> list[tuple[str, str, str]]:
    rows = [(claim.id, claim.test, _job(claim.needs)) for claim in claims if _ROW.match(claim.id)]
    return list(dict.fromkeys(rows))


def _outcome(case: ET.Element) -> str:
    if case.find("failure") is not None or case.find("error") is not None:
        return "failed"
    return "passed" if case.find("skipped") is None else "skipped"


def _summed(count: Counter[str] | None) -> str:
    count = count or Counter()
    return ", ".join(f"{count[word]} {word}" for word in ("failed", "passed", "skipped") if count[word]) or "not run"


def _job(needs: tuple[str, ...]) -> str:
    return ", ".join(dict.fromkeys(_JOBS[lever] for lever in needs if lever in _JOBS)) or "every"


def main(arguments: list[str]) -> int:
    sys.path.insert(0, str(REPOSITORY / "tests"))
    from support import promises

    claims = promises.claims()
    if arguments[:1] == ["--results"]:
        results = read_results(Path(arguments[1]))
        RESULTS.parent.mkdir(exist_ok=True)
        RESULTS.write_text(results_page(claims, results))
        wrong = problems(claims, results)
    else:
        pages = {PROMISES: promises_page(claims), FAULTS: faults_page(claims)}
        if arguments != ["--check"]:
            for page, text in pages.items():
                page.write_text(text)
        old = [page for page, text in pages.items() if not page.exists() or page.read_text() != text]
        wrong = [f"{page.relative_to(REPOSITORY)} is out of date: run make docs" for page in old]
    for line in wrong:
        print(line, file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
