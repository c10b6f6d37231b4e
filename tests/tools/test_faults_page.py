"""The table of faults: rows and jobs from the marks, results from a run of these very tests."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import faults_page
from faults_page import Result
from support import promises
from support.promises import Claim

ONE, TWO, THREE = "faults/test_kil.py::test_one", "faults/test_log.py::test_two", "faults/test_log.py::test_three"
CLAIMS = [
    Claim("KIL-04", ONE, "one", ("root", "pids-group"), version="aaaa"),
    Claim("LOG-01", TWO, "two", ("namespaces",), version="bbbb"),
    Claim("LOG-01", THREE, "three", version="cccc"),
    Claim("native:2", "tools/test_native.py::test_four", "no row of the fault list", version="dddd"),
]
VERSION = '<properties><property name="version" value="%s" /></properties>'
REPORT = f"""<?xml version="1.0" encoding="utf-8"?><testsuites>
<testsuite name="pytest" timestamp="2026-11-15T12:00:00.000000+00:00">
<testcase classname="tests.faults.test_kil" name="test_one[without-pidfd]">{VERSION % "aaaa"}</testcase>
<testcase classname="tests.faults.test_kil" name="test_one[with-all]">{VERSION % "aaaa"}
  <failure message="no">no</failure></testcase>
<testcase classname="tests.faults.test_log" name="test_two">{VERSION % "bbbb"}
  <skipped type="pytest.skip" message="no" /></testcase>
</testsuite></testsuites>
"""
PASSED = {
    ONE: Result("aaaa", "2 passed, 2026-11-14"),
    TWO: Result("bbbb", "1 skipped, 2026-11-14"),
    THREE: Result("cccc", "1 passed, 2026-11-14"),
}


def lines(text: str) -> list[list[str]]:
    return [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines() if line.startswith("| ")][2:]


def of_report(directory: Path) -> dict[str, Result]:
    report = directory / "results.xml"
    report.write_text(REPORT)
    return faults_page.of_run(report)


def test_rows_jobs_versions_and_results_stand_side_by_side(tmp_path: Path) -> None:
    assert lines(faults_page.page(CLAIMS, of_report(tmp_path))) == [
        ["KIL-04", f"`{ONE}`", "root", "aaaa", "1 failed, 1 passed, 2026-11-15"],
        ["LOG-01", f"`{TWO}`", "namespaces", "bbbb", "1 skipped, 2026-11-15"],
        ["LOG-01", f"`{THREE}`", "every", "cccc", "not run"],
    ]


def test_results_that_a_page_tells_are_read_back() -> None:
    assert faults_page.told(faults_page.page(CLAIMS, PASSED)) == PASSED


def test_a_partial_run_leaves_other_results_as_they_were(tmp_path: Path) -> None:
    after = {**PASSED, **of_report(tmp_path)}
    assert [line[-1] for line in lines(faults_page.page(CLAIMS, after))] == [
        "1 failed, 1 passed, 2026-11-15",
        "1 skipped, 2026-11-15",
        "1 passed, 2026-11-14",
    ]


def test_a_result_of_another_version_of_the_test_is_not_taken() -> None:
    page = faults_page.page(CLAIMS, {**PASSED, THREE: Result("0000", "1 passed, 2026-11-14")})
    assert lines(page)[2] == ["LOG-01", f"`{THREE}`", "every", "cccc", "not run"]


@pytest.mark.covers("found:35")
def test_the_check_of_the_page_fails_for_everything_that_makes_it_untrue() -> None:
    good = faults_page.page(CLAIMS, PASSED)
    assert faults_page.problems(CLAIMS, good) == []
    changed = [*CLAIMS[:2], CLAIMS[2]._replace(version="eeee"), CLAIMS[3]]
    renamed = [*CLAIMS[:2], CLAIMS[2]._replace(test="faults/test_log.py::test_other"), CLAIMS[3]]
    added = [*CLAIMS, Claim("LOG-02", "faults/test_log.py::test_five", "five", version="ffff")]
    failed = faults_page.page(CLAIMS, {**PASSED, ONE: Result("aaaa", "1 failed, 1 passed, 2026-11-15")})
    not_run = faults_page.page(CLAIMS, {ONE: PASSED[ONE], TWO: PASSED[TWO]})
    assert faults_page.problems(changed, good) == [
        "LOG-01: faults/test_log.py::test_three was changed after the run on the page",
        "LOG-01: no test of it has passed",
    ]
    assert faults_page.problems(renamed, good) == [
        "LOG-01: faults/test_log.py::test_other (every) is not on the page",
        "LOG-01: faults/test_log.py::test_three (every) is on the page and not marked",
        "LOG-01: no test of it has passed",
    ]
    assert faults_page.problems(CLAIMS[:2], good)[0] == f"LOG-01: {THREE} (every) is on the page and not marked"
    assert "LOG-02: no test of it has passed" in faults_page.problems(added, good)
    assert faults_page.problems(CLAIMS, failed)[0] == f"KIL-04: {ONE}: 1 failed, 1 passed, 2026-11-15"
    assert faults_page.problems(CLAIMS, not_run) == [
        f"LOG-01: {THREE}: not run",
        "LOG-01: no test of it has passed",
    ]


@pytest.mark.covers("found:35")
def test_a_real_run_names_the_version_of_each_test_it_ran(tmp_path: Path) -> None:
    report = tmp_path / "results.xml"
    test = "host/test_retention.py::test_jump_keeps_what_looks_old"
    argv = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--junitxml={report}", f"tests/{test}"]
    subprocess.run(argv, cwd=promises.REPOSITORY, check=True, capture_output=True, timeout=60)
    claims = [claim for claim in promises.claims() if claim.test == test]
    assert claims
    found = faults_page.of_run(report)[test]
    assert found.version == claims[0].version
    assert faults_page.problems(claims, faults_page.page(claims, {test: found})) == []
