"""The table of faults: rows and jobs from the marks, results from a run, kept where a later run was without them."""

from __future__ import annotations

from pathlib import Path

import faults_page
from support.promises import Claim

CLAIMS = [
    Claim("KIL-04", "faults/test_kil.py::test_one", "one", ("root", "pids-group")),
    Claim("LOG-01", "faults/test_log.py::test_two", "two", ("namespaces",)),
    Claim("LOG-01", "faults/test_log.py::test_three", "three"),
    Claim("native:2", "tools/test_native.py::test_four", "no row of the fault list"),
]
REPORT = """<?xml version="1.0" encoding="utf-8"?><testsuites>
<testsuite name="pytest" timestamp="2026-11-15T12:00:00.000000+00:00">
<testcase classname="tests.faults.test_kil" name="test_one[without-pidfd]" />
<testcase classname="tests.faults.test_kil" name="test_one[with-all]"><failure message="no">no</failure></testcase>
<testcase classname="tests.faults.test_log" name="test_two"><skipped type="pytest.skip" message="no" /></testcase>
</testsuite></testsuites>
"""


def lines(text: str) -> list[list[str]]:
    return [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines() if line.startswith("| ")][2:]


def test_rows_jobs_and_results_stand_side_by_side(tmp_path: Path) -> None:
    report = tmp_path / "results.xml"
    report.write_text(REPORT)
    assert lines(faults_page.page(CLAIMS, faults_page.of_run(report))) == [
        ["KIL-04", "`faults/test_kil.py::test_one`", "root", "1 failed, 1 passed, 2026-11-15"],
        ["LOG-01", "`faults/test_log.py::test_two`", "namespaces", "1 skipped, 2026-11-15"],
        ["LOG-01", "`faults/test_log.py::test_three`", "every", "not run yet"],
    ]


def test_results_that_a_page_tells_are_read_back(tmp_path: Path) -> None:
    results = {"faults/test_log.py::test_three": "1 passed, 2026-11-14"}
    assert faults_page.told(faults_page.page(CLAIMS, results)) == results


def test_a_partial_run_leaves_other_results_as_they_were(tmp_path: Path) -> None:
    report = tmp_path / "results.xml"
    report.write_text(REPORT)
    before = {
        "faults/test_log.py::test_three": "1 passed, 2026-11-14",
        "faults/test_kil.py::test_one": "2 passed, 2026-11-14",
    }
    after = {**before, **faults_page.of_run(report)}
    assert [line[-1] for line in lines(faults_page.page(CLAIMS, after))] == [
        "1 failed, 1 passed, 2026-11-15",
        "1 skipped, 2026-11-15",
        "1 passed, 2026-11-14",
    ]
