"""Marks name promises that exist, and the page of promises is what the marks say."""

from __future__ import annotations

import pytest

import faults_page
import promises_page
from support import promises


@pytest.mark.skipif(not promises.SHARED.is_dir(), reason="the list of promises is not beside this clone")
def test_a_covers_mark_names_a_promise_that_exists() -> None:
    known = promises.known()
    strangers = [f"{claim.id} in {claim.test}" for claim in promises.claims() if claim.id not in known]
    assert not strangers


def test_the_page_of_promises_is_up_to_date() -> None:
    assert promises_page.main(["--check"]) == 0, "run tools/promises_page.py"


def test_the_page_of_faults_is_up_to_date() -> None:
    assert faults_page.main(["--check"]) == 0, "run tools/faults_page.py"
