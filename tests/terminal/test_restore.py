"""Restore: from a mark, a keyframe or the beginning, the screen is the one that was."""

from __future__ import annotations

import random
import time
from typing import Any

import pytest

from holdfast.core.vt.tracker import Tracker
from holdfast.model.events import Init
from holdfast.runner.terminal import marks
from holdfast.terminal.attached import SessionScreen
from holdfast.terminal.grid import Grid, GridFailed
from holdfast.terminal.restore import prelude, render
from support.recordings import Recording, state_of, vim
from support.scale import scaled

Mark = dict[str, Any]
DRAWN_ANEW_EVERY = 64
# Each offset in the long form.
EVERY = scaled(24, 1)


def planned(tracker: Tracker, known: list[Mark], history_rows: int = 0, **options: Any) -> dict[str, Any]:
    newest = tracker.last_clear
    return marks.plan(
        [*known, newest] if newest is not None else known,
        at=tracker.ground,
        lines=tracker.lines,
        history_rows=history_rows,
        oldest=0,
        alt_entry=tracker.alt_entry,
        **options,
    )


def walk(recording: Recording) -> Any:
    """(offset, tracker, grid, marks so far) at every ground offset, the grid fed from 0."""
    tracker, grid = Tracker(*recording.size), Grid(*recording.size, history=1000)
    known = tracker.take_marks()
    sizes = {offset: (rows, cols) for offset, rows, cols in recording.resizes}
    for offset in range(len(recording.data) + 1):
        if offset:
            tracker.feed(recording.data[offset - 1 : offset])
            grid.feed(recording.data[offset - 1 : offset])
            tracker.take_replies()
            known += tracker.take_marks()
        if offset in sizes:
            tracker.resize(*sizes[offset])
            grid.resize(*sizes[offset])
        if tracker.ground == offset:
            yield offset, tracker, grid, known


def screens(grid: Grid) -> str:
    """Cells, cursor and modes of both screens, without the history: what avt itself says about all of its state."""
    return grid._emulator._vt.dump()


@pytest.mark.covers("terminal:2")
@pytest.mark.slow
def test_restored_at_every_ground_offset_then_as_a_grid_fed_from_0() -> None:
    recording = vim()
    seen, last = 0, 0
    begun: list[Any] = []
    last_plan: dict[str, Any] = {}
    restored = recording.grid(0)
    for offset, tracker, grid, known in walk(recording):
        plan = planned(tracker, known)
        # Where it is the plan for the offset before with some bytes more, these are drawn: all before them would be
        # drawn the same again. It is, from the beginning, where a plan begins, where it ends, and now and then between.
        if seen % EVERY and begun:
            seen += 1
            continue
        begins = [*plan["ranges"][:-1], {**plan["ranges"][-1], "to": None}]
        if begins != begun and begun:
            assert screens(render(last_plan, recording.read, recording.resizes, 0)) == screens(restored), last
        if begins != begun or seen % DRAWN_ANEW_EVERY == 0:
            restored = render(plan, recording.read, recording.resizes, 0)
        else:
            recording.carry_on(restored, last, offset)

        # Equal in all of its state, it takes the rest of the bytes to the same end.
        assert plan["exact"]
        assert screens(restored) == screens(grid), (offset, recording.data[offset - 40 : offset])
        assert (restored.size, restored.alt, restored.cursor) == (grid.size, grid.alt, grid.cursor)
        seen, begun, last, last_plan = seen + 1, begins, offset, plan
    assert seen > 50_000


@pytest.mark.covers("terminal:2")
def test_restored_at_some_offsets_and_fed_the_rest_then_the_same_end() -> None:
    recording = vim()
    end = state_of(recording.grid())

    for offset in range(1000, len(recording.data), 9001):
        tracker = recording.tracker(offset)
        plan = planned(tracker, tracker.take_marks(), history_rows=1000)
        grid = render(plan, recording.read, recording.resizes, 1000)
        recording.carry_on(grid, tracker.ground)

        assert state_of(grid) == end, offset


@pytest.mark.covers("terminal:2")
@pytest.mark.slow
def test_restored_from_every_clear_mark_with_resizes_between_then_as_a_grid_fed_from_0() -> None:
    recording = vim()
    # All clean starts, also those too near to each other to be written down, and how far each stay on the alternate
    # screen goes, whatever sizes come on the way.
    clears: list[tuple[int, Mark]] = []
    ends: dict[int, int] = {}
    for offset, tracker, _, _ in walk(recording):
        entered, newest = tracker.alt_entry, tracker.last_clear
        if entered is None:
            continue
        ends[entered] = offset
        if newest is not None and newest["offset"] > entered and (not clears or clears[-1][1] is not newest):
            clears.append((entered, newest))
    assert len(clears) > 10
    grids = {end: recording.grid(end) for end in ends.values()}

    for entered, mark in clears:
        end = ends[entered]
        plan = {
            "ranges": [
                {"from": 0, "to": entered, "size": list(recording.size), "state": None},
                {"from": mark["offset"], "to": end, "size": mark["size"], "state": mark["state"]},
            ]
        }
        restored = render(plan, recording.read, recording.resizes, 1000)

        assert screens(restored) == screens(grids[end]), mark["offset"]
        assert restored.history(1000) == grids[end].history(1000)


@pytest.mark.covers("terminal:2")
def test_restored_from_keyframes_with_resizes_between_then_as_a_grid_fed_from_0() -> None:
    recording = vim()
    end = recording.tracker()
    whole = state_of(recording.grid())
    plan = planned(end, end.take_marks(), history_rows=1000)
    read: list[int] = []

    def reading(begin: int, stop: int) -> list[bytes]:
        read.append(begin)
        return recording.read(begin, stop)

    for offset in range(2000, len(recording.data), 6007):
        ground = recording.tracker(offset).ground
        kept = recording.grid(ground)
        read.clear()
        restored = render(plan, reading, recording.resizes, 1000, keyframe=(ground, kept))

        assert state_of(restored) == whole, offset
        assert min(read) == ground


def test_restored_from_a_keyframe_with_a_wrap_pending_then_the_last_column_is_kept() -> None:
    recording = Recording((4, 20), b"x" * 20 + b"y", [(0, 4, 20)])
    plan = {"ranges": [{"from": 20, "to": 21, "size": [4, 20], "state": recording.tracker(20).snapshot()}]}

    grid = render(plan, recording.read, recording.resizes, 0, keyframe=(20, recording.grid(20)))

    assert [row.text.rstrip() for row in grid.rows()[:2]] == ["x" * 20, "y"]


@pytest.mark.covers("terminal:2")
def test_no_clean_start_within_reach_then_not_exact_but_what_was_printed_since_is_shown() -> None:
    data = b"".join(b"\x1b[3%dmline %06d\x1b[m\r\n" % (i % 8, i) for i in range(120_000))
    recording = Recording((10, 40), data, [(0, 10, 40)])
    tracker = recording.tracker()
    known = tracker.take_marks()
    assert [mark["why"] for mark in known] == ["start", "every", "every"]

    plan = planned(tracker, known, replay_max=1 << 20)
    grid = render(plan, recording.read, recording.resizes, 0)

    assert plan["exact"] is False
    assert plan["ranges"][0]["from"] == known[-1]["offset"]
    assert [row.text.rstrip() for row in grid.rows()][:9] == [f"line {i:06d}" for i in range(119_991, 120_000)]


LAYOUT = [
    *(b"\x1b[31;1;4:3m", b"\x1b[58;2;1;2;3m", b"\x1b[7m", b"\x1b[m", b"\x1b[3;7H", b"x" * 40, b"\x1b[2;5r", b"\x1b[r"),
    *(
        b"\x1b[?6h",
        b"\x1b[?6l",
        b"\x1b[?7l",
        b"\x1b[?7h",
        b"\x1b[4h",
        b"\x1b[20h",
        b"\x1b[?69h",
        b"\x1b[3;9s",
        b"\x1b7",
    ),
    *(
        b"\x1b[?1049h",
        b"\x1b[?1049l",
        b"\x1b[?1047h",
        b"\x1b[?1h",
        b"\x1b=",
        b"\x1b[?67h",
        b"\x1b[?1002h",
        b"\x1b[?1006h",
    ),
    *(b"\x1b[?1004h", b"\x1b[?2004h", b"\x1b[?25l", b"\x1b[?5h", b"\x1b[5 q", b"\x1b[?12h", b"\x1b[>4;2m", b"\x1b[>5u"),
    *(b"\x1b[=3;1u", b"\x1b[<u", b"\x1b(0", b"\x1b)A", b"\x0e", b"\x1bn", b"\x1b*0", b"\x1bH", b"\x1b[3g", b"\x1b[12G"),
    *(
        b"\x1b]8;id=1;http://x\x07",
        b"\x1b]8;;\x07",
        b"\x1b]2;a title\x07",
        b"\x1b]1;icon\x07",
        b"\x1b]7;file:///tmp\x07",
    ),
    *(
        b"\x1b]4;3;rgb:11/22/33\x07",
        b"\x1b]11;#102030\x07",
        b"\x1b]12;red\x07",
        b"\x1b]9;4;1;30\x07",
        b"\x1b]22;text\x07",
    ),
    *(b'\x1b[1"q', b"\x1b[?4242h", b"\x1b[?4243l", b"\x1b[77h", b"\r\n"),
]


@pytest.mark.parametrize("seed", range(150))
def test_any_state_then_its_prelude_puts_a_fresh_terminal_into_it(seed: int) -> None:
    chosen = random.Random(seed)
    tracker = Tracker(8, 30)
    tracker.feed(b"".join(chosen.choice(LAYOUT) for _ in range(chosen.randrange(1, 40))))
    state = tracker.snapshot()

    again = Tracker(8, 30)
    again.feed(prelude(state))

    assert again.take_replies() == []
    assert _comparable(again.snapshot()) == _comparable(state)


def _comparable(state: dict[str, Any]) -> dict[str, Any]:
    """Without what is history: where it is true, what was printed last, what was saved aside."""
    aside = ("offset", "lines", "last", "alt_entry", "alt_clean")
    kept = {name: value for name, value in state.items() if name not in aside}
    kept["labels"] = {name: value for name, value in state["labels"].items() if name not in ("title_stack", "bells")}
    # Whether a saved cursor waited at the edge is not said: it cannot be without printing on that screen.
    kept["saved"] = [saved and {**saved, "pending_wrap": False} for saved in state["saved"]]
    kept["modes"] = {**state["modes"], "saved": []}
    # Stops of columns that are not there cannot be set.
    stops = range(8, 1000, 8) if state["tabs"] is None else state["tabs"]
    kept["tabs"] = [stop for stop in stops if stop < state["size"][1]]
    return kept


@pytest.mark.parametrize("seed", range(60))
def test_any_state_then_its_prelude_puts_a_blank_grid_into_it(seed: int) -> None:
    chosen = random.Random(seed)
    before = b"".join(chosen.choice(LAYOUT) for _ in range(chosen.randrange(1, 40)))
    # Cleared, so that a blank grid is where both begin; avt has no sides, and no origin outside of the margins.
    before = before.replace(b"\x1b[?69h", b"").replace(b"\x1b[?6h", b"") + b"\x1b[2J"
    tracker, grid = Tracker(8, 30), Grid(8, 30)
    tracker.feed(before)
    grid.feed(before)

    restored = Grid(8, 30)
    restored.feed(prelude(tracker.snapshot()) + b"\x1b[2J")
    for fed in (grid, restored):
        fed.feed(b"\x1b[HqX# \x1b[Krest\x1b8saved\tq\x1b[20;20Hend")

    assert restored.rows() == grid.rows()
    assert restored.cursor == grid.cursor


@pytest.mark.covers("STR-08")
def test_stream_made_to_cost_then_given_up_within_the_bound() -> None:
    began = time.thread_time()
    data = b"\x1b[2J" * (1 << 20)
    plan = {"ranges": [{"from": 0, "to": len(data), "size": [500, 1000], "state": None}]}

    with pytest.raises(GridFailed, match=r"more than 0\.3 s"):
        render(plan, lambda begin, end: [data[begin:end]], [], 0, max_cpu_s=0.3)

    assert time.thread_time() - began < 3


def test_range_without_a_size_then_that_of_the_last_resize_before_it() -> None:
    data = b"x" * 100
    plan = {"ranges": [{"from": 50, "to": 100, "size": None, "state": None}]}

    grid = render(plan, lambda begin, end: [data[begin:end]], [(0, 10, 20), (40, 5, 30), (60, 6, 40)], 0)

    assert grid.size == (6, 40)


def test_resize_at_the_very_end_then_applied() -> None:
    plan = {"ranges": [{"from": 0, "to": 3, "size": [4, 10], "state": None}]}

    grid = render(plan, lambda begin, end: [b"abc"[begin:end]], [(0, 4, 10), (3, 5, 12)], 0)

    assert grid.size == (5, 12)
    assert grid.rows()[0].text.rstrip() == "abc"


@pytest.mark.parametrize("printed", ["\x1b[2J\x1b[H$ ", "\x1b[H\x1b[J" + "new\r\n" * 23 + "$ "])
def test_a_cleared_screen_that_grows_is_the_same_with_and_without_history(printed: str) -> None:
    """Whether it is drawn from the log or was followed since before the clear, in pieces or at once."""
    before = "".join(f"line {n}\r\n" for n in range(60)).encode()
    data = before + printed.encode()
    recording = Recording((24, 80), data, [(0, 24, 80), (len(data), 32, 80)])
    tracker = recording.tracker()
    known = tracker.take_marks()

    def drawn(history: int, *resizes: tuple[int, int, int]) -> Grid:
        return render(planned(tracker, known, history), recording.read, [*recording.resizes, *resizes], history)

    without, whole = drawn(0), drawn(1000)
    assert [row.text for row in whole.rows()] == [row.text for row in without.rows()]
    assert whole.cursor == without.cursor
    assert whole.cursor[:2] == (tracker.cursor.row, tracker.cursor.col)
    assert [row.text.strip() for row in whole.history(1000)] == [f"line {n}" for n in range(whole.scrolled)]
    assert whole.scrolled == 37

    for size in (1, 5, len(data)):
        begun = Tracker(24, 80)
        init = Init(0, (24, 80), begun.snapshot(), [], [], True, [], None, None)
        followed = SessionScreen(init, Grid(24, 80), 1000, None)
        for at in range(0, len(data), size):
            followed.take(at, data[at : at + size])
            assert followed.grid.size == (24, 80)
        followed.resize(32, 80)
        assert screens(followed.grid) == screens(whole)
        assert followed.grid.history(1000) == whole.history(1000)
        followed.resize(40, 120)
        again = drawn(1000, (len(data), 40, 120))
        assert screens(followed.grid) == screens(again)
        assert followed.grid.history(1000) == again.history(1000)
        assert len(again.history(1000)) == 37
