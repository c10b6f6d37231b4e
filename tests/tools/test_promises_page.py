"""The pages of promises and faults come from the marks; the table of results comes from a run."""

from __future__ import annotations

from pathlib import Path

import pytest

import promises_page
from support.promises import Claim
from support.small_suite import run
from support.world import World

ONE, TWO, THREE = "test_leak.py::test_one", "test_leak.py::test_two", "test_leak.py::test_three"
CLAIMS = [
    Claim("KIL-04", ONE, "one", ("root", "pids-group")),
    Claim("LOG-01", TWO, "two", ("namespaces",)),
    Claim("LOG-01", THREE, "three"),
    Claim("native:2", "tools/test_native.py::test_four", "no row of the fault list"),
]


def lines(text: str) -> list[list[str]]:
    return [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines() if line.startswith("| ")][2:]


def test_the_page_of_faults_has_each_row_with_its_tests_and_their_job() -> None:
    assert lines(promises_page.faults_page(CLAIMS)) == [
        ["KIL-04", f"`{ONE}`", "root"],
        ["LOG-01", f"`{TWO}`", "namespaces"],
        ["LOG-01", f"`{THREE}`", "every"],
    ]


@pytest.mark.covers("found:35")
def test_results_come_from_a_real_run_and_a_row_that_it_did_not_prove_is_named(world: World, tmp_path: Path) -> None:
    report = tmp_path / "results.xml"
    body = """
    @pytest.mark.parametrize("n", [1, 2])
    def test_one(n): assert n == 2
    def test_two(): pytest.skip("not here")
    def test_three(): pass
    """
    run(world, body, f"--junitxml={report}")
    results = {f"test_leak.py::{test.partition('::')[2]}": n for test, n in promises_page.read_results(report).items()}
    assert [line[-1] for line in lines(promises_page.results_page(CLAIMS, results))] == [
        "1 failed, 1 passed",
        "1 skipped",
        "1 passed",
    ]
    assert promises_page.problems(CLAIMS, results) == [f"KIL-04: {ONE}: 1 failed, 1 passed"]
    assert promises_page.problems(CLAIMS[1:2], results) == [], "its only test belongs to another job"
    here = [CLAIMS[1]._replace(needs=())]
    assert promises_page.problems(here, results) == ["LOG-01: no test of it has passed"]
    added = [*CLAIMS[1:], Claim("LOG-02", "test_leak.py::test_five", "five")]
    assert promises_page.problems(added, results) == ["LOG-02: no test of it has passed"]
    assert promises_page.problems(CLAIMS[1:], results) == []
