"""Names of runs."""

from __future__ import annotations

from holdfast.tools.openclaw.supervisor import new_slug


def test_a_slug_is_two_words_that_are_free() -> None:
    taken: set[str] = set()
    for _ in range(500):
        slug = new_slug(lambda name: name not in taken)
        assert slug not in taken
        assert len(slug.split("-")) in (2, 3)
        taken.add(slug)


def test_a_number_is_appended_when_two_words_are_taken() -> None:
    assert new_slug(lambda name: name.endswith("-3")).endswith("-3")
