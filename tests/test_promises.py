"""Marks name promises that exist, each is proven in the short run, and the pages are those of the marks."""

from __future__ import annotations

import pytest

import promises_page
from support import promises


@pytest.mark.needs("promises")
def test_a_covers_mark_names_a_promise_that_exists() -> None:
    known = promises.known()
    strangers = [f"{claim.id} in {claim.test}" for claim in promises.claims() if claim.id not in known]
    assert not strangers


def test_every_promise_with_a_test_has_one_that_is_not_long() -> None:
    assert promises.only_long(promises.claims()) == []


@pytest.mark.covers("found:35")
def test_the_pages_of_promises_and_faults_are_up_to_date() -> None:
    assert promises_page.main(["--check"]) == 0, "run make docs"
