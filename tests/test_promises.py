"""Marks name promises that exist, each is proven in the short run, and the pages say what the marks and a run say."""

from __future__ import annotations

import pytest

import faults_page
import promises_page
from support import promises


@pytest.mark.needs("promises")
def test_a_covers_mark_names_a_promise_that_exists() -> None:
    known = promises.known()
    strangers = [f"{claim.id} in {claim.test}" for claim in promises.claims() if claim.id not in known]
    assert not strangers


def test_every_promise_with_a_test_has_one_that_is_not_long() -> None:
    assert promises.only_long(promises.claims()) == []


def test_the_page_of_promises_is_up_to_date() -> None:
    assert promises_page.main(["--check"]) == 0, "run tools/promises_page.py"


@pytest.mark.covers("found:35")
def test_the_page_of_faults_tells_of_a_run_of_these_tests_in_which_every_row_passed() -> None:
    stands = faults_page.PAGE.read_text()
    assert faults_page.problems(promises.claims(), stands) == [], "run make test, then make docs"
