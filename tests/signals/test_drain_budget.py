"""What fits into a message, what is left out of it, and that nothing is lost uncounted."""

from __future__ import annotations

import re
from collections import Counter
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.signals.items import DIGEST, EVENT, FAILURE, MATCH, NOTICE, SUCCESS, Cost, Limits, Offer, allot
from holdfast.signals.lines import Signal
from holdfast.signals.render import Message, render
from holdfast.tools import TOOLSETS
from support.batches import Teller, one_of_each, tail
from support.scale import scaled

ALL_STYLES = tuple(TOOLSETS)
NOTHING = Cost(0, 0)


def suppressed_in(text: str) -> int:
    return sum(int(number) for number in re.findall(r"(\d+) lines? suppressed, read", text))


# A flood.


FLOOD = [f"line {n} of the flood" for n in range(100_000)]


@cache
def flood(per_event: int, keep: int) -> tuple[bytes, list[Signal]]:
    """The events of a monitor over these lines: of each `per_event` the newest `keep`, and the bytes of its log."""
    lines = FLOOD
    log = "".join(line + "\n" for line in lines).encode()
    session = Teller("m00000001", "monitor", name="flood", ends={"stdout": len(log)})
    signals, offset = [], 0
    for begin in range(0, len(lines), per_event):
        batch = lines[begin : begin + per_event]
        left_out = max(0, len(batch) - keep)
        skipped = sum(len(line.encode()) + 1 for line in batch[:left_out])
        cursor = f"stdout:{offset}" if left_out else None
        signals.append(session.event(*batch[left_out:], offset=offset + skipped, suppressed=left_out, cursor=cursor))
        offset += sum(len(line.encode()) + 1 for line in batch)
    return log, [*signals, session.event(closing=True), session.ended(0, events={"count": len(lines)})]


@pytest.mark.covers("signals:21")
@pytest.mark.parametrize(
    "style, per_event, keep", [("native", 50, 50), ("native", 97, 6), *((style, 5000, 50) for style in ALL_STYLES)]
)
def test_a_flood_is_one_bounded_message_that_counts_and_points(style: str, per_event: int, keep: int) -> None:
    log, signals = flood(per_event, keep)
    message = render(signals, style)
    assert len(message.text) <= 8000
    assert message.text.count("\n") < 200
    shown = [int(number) for number in re.findall(r"line (\d+) of the flood", message.text)]
    assert message.shown == len(shown) > 0
    assert len(set(shown)) == len(shown), "none twice"
    assert shown[-1] == 99_999, "the newest are shown"
    assert message.shown + message.suppressed == 100_000
    assert suppressed_in(message.text) == message.suppressed, "and the text says the same"
    first = min(set(range(100_000)) - set(shown))
    (offset,) = re.findall(r"suppressed, read with [^\n]*stdout:(\d+)", message.text)
    assert log[int(offset) :].partition(b"\n")[0].decode() == FLOOD[first]


def test_lines_that_are_left_out_in_the_middle_leave_a_mark_there() -> None:
    session = Teller("m00000001", "monitor", ends={"stdout": 900})
    batch = [
        session.event("first", suppressed=0),
        session.event("began so", "ends so", offset=100, suppressed=40, cursor="stdout:109", level="digest"),
        session.event("late", offset=800, suppressed=2, cursor="stdout:700"),
    ]
    lines = render(batch).text.split("\n")[2:-1]
    heading = (
        'm00000001 [monitor] "make test": 46 lines; live again: lines are reported as they are printed; '
        "42 lines suppressed, read with cursor stdout:109"
    )
    assert lines == [
        heading,
        "| first",
        "| began so",
        "(40 lines suppressed here)",
        "| ends so",
        "(2 lines suppressed here)",
        "| late",
    ]


def test_a_cursor_names_every_stream_that_spoke_so_that_nothing_old_is_read_again() -> None:
    session = Teller("m00000001", "monitor", ends={"stdout": 9000, "stderr": 700})
    batch = [
        session.event(*(f"out {n}" for n in range(60)), offset=100),
        session.event("err", stream="stderr", offset=650),
    ]
    text = render(batch).text
    assert "read with cursor stdout:100,stderr:700" in text, "of stderr all is shown"
    assert "| (stderr) err" in text
    assert "| (stdout) out 59" in text


@pytest.mark.covers("signals:21")
@pytest.mark.parametrize("style", ALL_STYLES)
@given(data=st.data())
@settings(max_examples=15, deadline=None)
def test_shown_and_suppressed_make_up_all_lines(style: str, data: st.DataObject) -> None:
    signals: list[Signal] = []
    total = 0
    for number in range(data.draw(st.integers(1, 12))):
        session = Teller(f"m{number:08d}", "monitor", ends={"stdout": 10_000})
        for _ in range(data.draw(st.integers(0, 3))):
            texts = data.draw(st.lists(st.text("ab ", max_size=30), max_size=30))
            left_out = data.draw(st.integers(0, 2000))
            signals.append(session.event(*texts, suppressed=left_out, cursor="stdout:1" if left_out else None))
            total += len(texts) + left_out
        for _ in range(data.draw(st.integers(0, 2))):
            texts = data.draw(st.lists(st.text("ab ", max_size=30), max_size=5))
            signals.append(session.watch(*texts))
            total += len(texts)
    message = render(signals, style)
    assert message.shown + message.suppressed == total
    bounded(message, Limits())


# The limits.


def bounded(message: Message, limits: Limits) -> None:
    lines = message.text.split("\n")
    assert len(message.text) <= limits.chars
    assert len(lines) <= limits.lines
    assert max(map(len, lines)) <= limits.line_chars


@pytest.mark.parametrize("style", ALL_STYLES)
def test_a_message_a_session_and_a_line_keep_their_limits(style: str) -> None:
    loud = [Teller(f"b{n:08d}") for n in range(20)]
    signals = []
    for session in loud:
        signals += [session.watch(*("ERROR " + "x" * 700 for _ in range(20))) for _ in range(8)]
        tails = {stream: tail(*("y" * 90 for _ in range(30))) for stream in ("stdout", "stderr")}
        signals.append(session.ended(1, tail=tails))
    message = render(signals, style)
    bounded(message, Limits())
    alone = render([signal for signal in signals if signal.session == "b00000000"], style).text
    # What frames the message is not the session's.
    assert len(alone) <= 3000 + 700
    assert alone.count("\n") <= 50 + 8
    small = Limits(chars=1500, lines=20, session_chars=600, session_lines=6, line_chars=300)
    bounded(render(signals, style, limits=small), small)


@pytest.mark.parametrize("style", ALL_STYLES)
@given(st.lists(st.sampled_from(list(one_of_each())), max_size=60))
@settings(max_examples=10, deadline=None)
def test_any_batch_keeps_the_limits(style: str, signals: list[Signal]) -> None:
    message = render(signals, style)
    if message:
        bounded(message, Limits())


@pytest.mark.covers("signals:23")
@pytest.mark.parametrize("style", ALL_STYLES)
def test_three_hundred_endings_are_all_named_or_counted_and_failures_are_named_first(style: str) -> None:
    signals = []
    for n in range(300):
        session = Teller(f"b{n:08d}", pid=100_000 + n, name=None, command=f"job {n}", ends={"stdout": 9})
        code = 1 if n % 30 == 29 else 0
        signals.append(session.ended(code, tail={"stdout": tail("printed")}))
    message = render(signals, style)
    bounded(message, Limits())
    assert len(message.ids) == 300
    named = set(re.findall(r"b0{5}\d{3}", message.text))
    found = re.search(r"and (\d+) more sessions \(([^)]*)\)", message.text)
    assert found
    assert len(named) + int(found[1]) == 300
    assert found[2] == f"{found[1]} completed", "every failure has its line"
    assert all(f"b{n:08d}" in named for n in range(29, 300, 30))


def test_the_rest_is_counted_by_how_it_stands() -> None:
    signals = [Teller(f"b{n:08d}", name="n" * 120).ended(int(n < 20)) for n in range(100)]
    signals += [Teller(f"c{n:08d}", name="n" * 120).tell("deadline", limit_s=1, elapsed_s=2) for n in range(40)]
    text = render(signals).text
    found = re.search(r"and (\d+) more sessions \((.*?)\)", text)
    assert found
    counts = {how: int(count) for count, how in re.findall(r"(\d+) ([a-z ]+)", found[2])}
    named = Counter(re.findall(r"^\w{9} \[local_bash\] \"n+\" (completed|failed|has run)", text, re.MULTILINE))
    assert counts.get("completed", 0) + named["completed"] == 80
    assert counts.get("failed", 0) + named["failed"] == 20
    assert counts.get("with news", 0) + named["has run"] == 40
    assert not counts.get("failed")


def test_notices_of_a_session_that_do_not_fit_are_counted() -> None:
    session = Teller()
    signals = [session.tell("health", state="unhealthy", evidence="e" * 110, since=None) for _ in range(60)]
    text = render(signals).text
    reported = text.count("is unhealthy")
    assert f"{60 - reported} more notices of the sessions above left out" in text


def test_everything_is_shown_where_all_of_it_fits() -> None:
    """On faulty code the first of several failures was cut to its share, although the others needed less."""
    texts = [f"{number:02} {'x' * 55}" for number in range(30)]
    signals = [Teller("b00000000").ended(1, tail={"stderr": tail(*texts)})]
    signals += [Teller(f"b{n:08d}").ended(1, tail={"stderr": tail("short")}) for n in range(1, 6)]
    lines = render(signals).text.split("\n")
    assert [line for line in lines if "xxx" in line] == [f"| (stderr) {text}" for text in texts]
    assert lines.count("| (stderr) short") == 5


# Who is paid first.


def offer(session: str, rank: int, most: int = 0, *, width: int = 9, final: bool = False) -> Offer:
    return Offer(session, rank, lambda n: ["h" * width, *["l" * width] * n], most=most, final=final)


def test_every_session_has_its_line_before_any_has_output() -> None:
    offers = [offer("a", FAILURE, 30, final=True), *(offer(str(n), SUCCESS, 5, final=True) for n in range(9))]
    granted = allot(offers, Limits(chars=100, lines=200), NOTHING)
    assert granted == [0] * 10
    assert allot(offers, Limits(chars=120, lines=200), NOTHING) == [2, *[0] * 9]


def test_failures_come_before_matches_before_events_before_successes() -> None:
    ranks = [SUCCESS, EVENT, MATCH, NOTICE, FAILURE]
    offers = [offer(str(n), rank, 10, final=rank in (SUCCESS, FAILURE)) for n, rank in enumerate(ranks)]
    for room, expected in enumerate(
        [[0, 0, 0, 0, 0], [0, 0, 0, 0, 10], [0, 0, 0, 10, 10], [0, 0, 10, 10, 10], [0, 10, 10, 10, 10], [10] * 5]
    ):
        assert allot(offers, Limits(chars=50 + 100 * room), NOTHING) == expected


def test_those_of_the_same_rank_share_and_what_one_does_not_need_continues() -> None:
    offers = [offer("short", FAILURE, 1, final=True), *(offer(name, FAILURE, 30, final=True) for name in "abc")]
    granted = allot(offers, Limits(chars=40 + 130), NOTHING)
    assert granted == [1, 4, 4, 4]


def test_when_not_even_the_lines_fit_failures_have_theirs_first() -> None:
    offers = [*(offer(f"s{n}", SUCCESS, final=True) for n in range(5)), offer("f", FAILURE, final=True)]
    assert allot(offers, Limits(chars=25), NOTHING) == [0, None, None, None, None, 0]


def test_the_line_of_a_session_that_ended_is_its_ending() -> None:
    offers = [offer("a", MATCH, 3), offer("a", SUCCESS, 3, final=True)]
    assert allot(offers, Limits(chars=15), NOTHING) == [None, 0]


@given(
    st.lists(
        st.tuples(st.integers(0, 5), st.integers(FAILURE, DIGEST), st.integers(0, 60), st.integers(1, 600)), max_size=30
    ),
    st.integers(0, 9000),
    st.integers(0, 250),
)
@settings(max_examples=scaled(40, 200), deadline=None)
def test_no_limit_is_ever_passed(items: list[tuple[int, int, int, int]], chars: int, lines: int) -> None:
    limits = Limits(chars=chars, lines=lines)
    offers = [offer(str(session), rank, most, width=width) for session, rank, most, width in items]
    granted = allot(offers, limits, NOTHING)
    spent: Counter[str] = Counter()
    spent_lines: Counter[str] = Counter()
    first: dict[object, int] = {}
    for each, shown in zip(offers, granted, strict=True):
        if shown is not None:
            assert 0 <= shown <= each.most
            cost = Cost.of(each.text(shown))
            spent["all"] += cost.chars
            spent_lines["all"] += cost.lines
            spent[str(each.session)] += cost.chars
            spent_lines[str(each.session)] += cost.lines
            first[each.session] = max(first.get(each.session, 0), Cost.of(each.text(0)).chars)
    assert spent["all"] <= chars
    assert spent_lines["all"] <= lines
    for session, longest in first.items():
        assert spent[str(session)] <= max(limits.session_chars, longest)
        assert spent_lines[str(session)] <= limits.session_lines
