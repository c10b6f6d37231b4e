"""Write docs/faults.md: for each row of the fault list its tests, the job they need, and what came of a run of them.

    faults_page.py [REPORT...]      takes the results from these reports of pytest; none: build/results.xml
    faults_page.py --check          says what is wrong with the page as it stands

A report names the version of each test that it ran (tests/support/suite.py records it). Only a result of the test as it
is now is taken, from the reports or, for tests that these did not run, from the page.
"""

from __future__ import annotations

import re
import sys
import xml.etree.ElementTree as ET
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from support.promises import Claim

REPOSITORY = Path(__file__).resolve().parents[1]
PAGE = REPOSITORY / "docs" / "faults.md"
RESULTS = REPOSITORY / "build" / "results.xml"

_HEAD = """\
# Faults, their tests, and what came of them

Each row of the fault list, the tests that prove it, the job that has what they need, the version of the test that was
run, and the outcome and day of that run. What each test says is in [promises](promises.md). Written by
`tools/faults_page.py` from the report of `make test`; do not edit.

| row | test | job | version | result |
| --- | --- | --- | --- | --- |
"""
_ROW = re.compile(r"^[A-Z]{3}-\d+$")
_LINE = re.compile(r"^\| ([A-Z]{3}-\d+) \| `([^`]+)` \| ([^|]+) \| ([^|]+) \| ([^|]+) \|$", re.MULTILINE)
_NEVER = "not run"
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


class Result(NamedTuple):
    """What came of one version of a test, all its parameters together."""

    version: str
    text: str


def page(claims: list[Claim], results: dict[str, Result]) -> str:
    lines = []
    for claim in claims:
        if _ROW.match(claim.id):
            found = results.get(claim.test)
            known = found is not None and found.version == claim.version
            text = found.text if found is not None and known else _NEVER
            lines.append(f"| {claim.id} | `{claim.test}` | {_job(claim.needs)} | {claim.version} | {text} |\n")
    return _HEAD + "".join(dict.fromkeys(lines))


def told(text: str) -> dict[str, Result]:
    """The results that a page tells, by test."""
    return {test: Result(version, result) for _, test, _, version, result in _LINE.findall(text) if result != _NEVER}


def problems(claims: list[Claim], text: str) -> list[str]:
    """Why this page is not that of these tests, or does not show that they passed."""
    marked = {(claim.id, claim.test, _job(claim.needs)): claim.version for claim in claims if _ROW.match(claim.id)}
    lines = {(row, test, job): (version, result) for row, test, job, version, result in _LINE.findall(text)}
    found = [f"{row}: {test} ({job}) is not on the page" for row, test, job in marked.keys() - lines.keys()]
    found += [f"{row}: {test} ({job}) is on the page and not marked" for row, test, job in lines.keys() - marked.keys()]
    passed = set()
    for row, test, job in lines.keys() & marked.keys():
        version, result = lines[row, test, job]
        if version != marked[row, test, job]:
            found.append(f"{row}: {test} was changed after the run on the page")
        elif "failed" in result or result == _NEVER:
            found.append(f"{row}: {test}: {result}")
        elif "passed" in result:
            passed.add(row)
    found += [f"{row}: no test of it has passed" for row in {row for row, _, _ in marked} - passed]
    return sorted(found)


def of_run(path: Path) -> dict[str, Result]:
    """What a report of pytest says of each test function."""
    counts: dict[str, Counter[str]] = {}
    versions: dict[str, str] = {}
    days: dict[str, str] = {}
    for suite in ET.parse(path).getroot().iter("testsuite"):
        for case in suite.iter("testcase"):
            module = case.get("classname", "").removeprefix("tests.").replace(".", "/")
            test = f"{module}.py::{case.get('name', '').partition('[')[0]}"
            counts.setdefault(test, Counter())[_outcome(case)] += 1
            days[test] = suite.get("timestamp", "")[:10]
            for fact in case.iter("property"):
                if fact.get("name") == "version":
                    versions[test] = fact.get("value", "")
    return {
        test: Result(versions[test], f"{_summed(count)}, {days[test]}")
        for test, count in counts.items()
        if test in versions
    }


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

    claims = promises.claims()
    stands = PAGE.read_text() if PAGE.exists() else ""
    if arguments != ["--check"]:
        results = told(stands)
        for report in map(Path, arguments) if arguments else [RESULTS]:
            results.update(of_run(report))
        stands = page(claims, results)
        PAGE.write_text(stands)
    wrong = problems(claims, stands)
    for line in wrong:
        print(f"docs/faults.md: {line}", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
