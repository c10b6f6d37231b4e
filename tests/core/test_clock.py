"""Times as records have them, read back."""

from __future__ import annotations

from datetime import date, datetime, time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.clock import epoch, rfc3339


@given(st.integers(0, 4_000_000_000_000))
def test_a_time_is_read_as_it_was_written(milliseconds: int) -> None:
    found = epoch(rfc3339(milliseconds * 1_000_000))
    assert found is not None
    assert round(found * 1000) == milliseconds


@given(st.dates(date(1000, 1, 2)), st.times(), st.sampled_from(["Z", "+00:00", "-00:30", "+09:00", "-11:45"]))
def test_a_time_is_the_one_of_the_calendar(day: date, of_day: time, zone: str) -> None:
    text = f"{day}T{of_day.isoformat()}{zone}"
    assert epoch(text) == pytest.approx(datetime.fromisoformat(text).timestamp(), abs=1e-4)


@pytest.mark.parametrize(
    "value",
    [
        *(None, 7, "", "yesterday", "2026-08-01", "2026-08-01T09:14:07", "2026-08-01T09:14:07.412"),
        *("2026-02-29T09:14:07Z", "2026-13-01T09:14:07Z", "2026-08-00T09:14:07Z", "2026-08-01T24:14:07Z"),
        *("2026-08-01T09:14:07412Z", "2026-08-01T09:14:07.4x2Z", "2026-08-01T09:14:07.412UTC", "2026-08-01 09:14:07Z"),
    ],
)
def test_what_is_not_a_time_is_none(value: object) -> None:
    assert epoch(value) is None


@given(
    st.text(max_size=40) | st.from_regex(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)?", fullmatch=True)
)
def test_any_text_is_a_time_or_none(text: str) -> None:
    assert isinstance(epoch(text), float | None)
