"""The reader of covers marks and the scanner of points, on small trees."""

from __future__ import annotations

from pathlib import Path

import pytest

import promises_page
from support import points, promises

# Spelled in two pieces, or readers of this suite's own marks would take these for claims.
MARKED = '''
import pytest
pytestmark = [pytest.mark.MARK("LOG-05"), pytest.mark.needs("strace")]

@pytest.mark.root
@pytest.mark.MARK("KIL-10", "native:2")
def test_one_thing():
    """A poisoned | group.

    More.
    """

class TestMore:
    @pytest.mark.parametrize("x", [pytest.param(1, marks=pytest.mark.MARK("KIL-02"))])
    async def test_two_things(self, x): ...

def helper(): ...
'''.replace("MARK(", "covers(")


def test_marks_are_read_from_functions_classes_parameters_and_modules(tmp_path: Path) -> None:
    (tmp_path / "test_x.py").write_text(MARKED)
    found = promises.claims(tmp_path)
    one, two = "test_x.py::test_one_thing", "test_x.py::test_two_things"
    assert [(claim.id, claim.test) for claim in found] == [
        ("KIL-02", two),
        ("KIL-10", one),
        ("LOG-05", one),
        ("LOG-05", two),
        ("native:2", one),
    ]
    assert {claim.test: claim.needs for claim in found} == {one: ("strace", "root"), two: ("strace",)}
    page = promises_page.promises_page(found)
    assert f"| KIL-10 | `{one}`: A poisoned \\| group. |\n" in page
    assert [line.split()[1] for line in page.splitlines()[7:]] == ["KIL-02", "KIL-10", "LOG-05", "native:2"]
    assert f"`{one}`: A poisoned \\| group.<br>`{two}`: two things" in page


CONFTEST = """
import pytest
_OTHER = pytest.param("other", marks=[pytest.mark.MARK("KIL-02"), pytest.mark.long])

@pytest.fixture(params=["usual", _OTHER])
def kind(request): ...

@pytest.fixture
def made(kind): ...
""".replace("MARK(", "covers(")


def test_marks_of_the_parameters_of_a_fixture_count_for_each_test_that_uses_it(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "test_x.py").write_text("def test_one(made): ...\ndef test_two(x): ...\n")
    assert [(claim.id, claim.test, claim.long) for claim in promises.claims(tmp_path)] == [
        ("KIL-02", "test_x.py::test_one", True)
    ]


def test_an_id_that_is_computed_is_refused(tmp_path: Path) -> None:
    (tmp_path / "test_x.py").write_text("@pytest.mark.MARK(f'KIL-{n}')\ndef test_x(): ...\n".replace("MARK", "covers"))
    with pytest.raises(AssertionError, match="written out"):
        promises.claims(tmp_path)


def test_known_promises_come_from_contracts_and_faults(tmp_path: Path) -> None:
    (tmp_path / "contracts").mkdir()
    (tmp_path / "contracts" / "toolset-native.md").write_text("1. no\n## Acceptance\n")
    (tmp_path / "contracts" / "terminal.md").write_text("1. no\n\n## Acceptance\n\n1. yes\n2. too\n")
    (tmp_path / "faults.md").write_text("| OWN-01 | host dies | x |\n| own | no |\n")
    known = promises.known(tmp_path)
    assert (known["terminal:1"], known["OWN-01"]) == ("yes", "host dies")


def test_points_are_found_where_they_are(tmp_path: Path) -> None:
    (tmp_path / "x.py").write_text('failpoints.hit("a.b")\nfailpoints.hit("c.d")\n')
    found = [(place.name, place.where) for place in points.places(tmp_path)]
    assert found == [("a.b", "x.py:1"), ("c.d", "x.py:2")]
    assert points.all_points(tmp_path) == ["a.b", "c.d"]


def test_a_point_without_a_written_name_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.py").write_text("failpoints.hit(name)\n")
    with pytest.raises(AssertionError, match="written out"):
        points.all_points(tmp_path)
