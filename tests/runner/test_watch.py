"""Watch patterns over a real log, on a clock that the test moves."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.runner.features.patterns import BadPattern
from holdfast.runner.features.watch import CHARS_MAX, LINES_MAX
from support.still_life import Stage, pattern


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    with ExitStack() as stack:
        yield Stage(tmp_path, stack)


def test_a_match_is_reported_after_a_moment_with_its_neighbours(stage: Stage) -> None:
    watched = stage.watch("ERROR", {"regex": "warn(ing)?", "ignore_case": True})
    watched.prints("fine\nERROR: disk full\n", then_s=0.05)
    watched.prints("nothing\nWARNING: soon\n", then_s=0.04)
    assert not watched.told

    watched.clock.pass_by(0.02)

    assert watched.told == [
        {
            "pattern": "w1",
            "text": "ERROR",
            "lines": ["ERROR: disk full", "WARNING: soon"],
            "stream": "stdout",
            "offset": 5,
            "more": 0,
            "suppressed": 0,
            "hits": 1,
            "strikes": 0,
            "until": 1015_000_000_000,
        }
    ]


def test_the_first_pattern_in_the_list_wins_a_line(stage: Stage) -> None:
    watched = stage.watch({"regex": "disk"}, "ERROR")
    watched.prints("ERROR: disk full\n", then_s=1)

    assert [(told["pattern"], told["text"], told["lines"]) for told in watched.told] == [
        ("w1", "/disk/", ["ERROR: disk full"])
    ]


def test_a_pattern_of_one_stream_does_not_match_in_another(stage: Stage) -> None:
    watched = stage.watch({"literal": "ERROR", "stream": "stderr"})
    watched.prints("ERROR on stdout\n", "stdout")
    watched.prints("ERROR on stderr\n", "stderr", then_s=1)

    assert [(told["stream"], told["lines"]) for told in watched.told] == [("stderr", ["ERROR on stderr"])]


@pytest.mark.covers("signals:24")
@pytest.mark.parametrize(
    "printed, literal, clean",
    [
        (b"well\nan ERROR here\nwell\n", "ERROR", "an ERROR here"),
        ("well\n\u00c4rger mit \u6f22\u5b57\n".encode(), "\u00c4rger mit \u6f22", "\u00c4rger mit \u6f22\u5b57"),
        (
            b"well\n" + b"".join(b"\x1b[3%dm%c" % (n % 8, c) for n, c in enumerate(b"ERROR")) + b"\x1b[0m!\r\n",
            "ERROR",
            "ERROR!",
        ),
        (b"well\nER\x1b]8;;http://x\x1b\\RO\x1b]8;;\x07R\n", "ERROR", "ERROR"),
    ],
)
def test_a_literal_split_over_two_reads_at_every_byte_matches_once(
    stage: Stage, printed: bytes, literal: str, clean: str
) -> None:
    for cut in range(len(printed) + 1):
        watched = stage.watch(literal)
        watched.prints(printed[:cut], then_s=0.01)
        watched.prints(printed[cut:], then_s=1)

        assert [(told["lines"], told["offset"], told["more"]) for told in watched.told] == [([clean], 5, 0)], cut
        assert watched.ends() == {"hits": 1, "suppressed": 0, "unscanned": 0}


def test_a_match_on_the_cut_of_a_very_long_line_is_reported_once(stage: Stage) -> None:
    for place in (8180, 8190, 8192, 16370):
        watched = stage.watch("ERROR", {"regex": "E[R]+OR"})
        watched.prints("." * place + "ERROR" + "." * 20_000 + "\n", then_s=1)

        assert len(watched.told) == 1, place
        assert watched.told[0]["more"] == 0


@pytest.mark.covers("signals:25")
def test_an_unfinished_line_matches_after_some_quiet_and_only_once(stage: Stage) -> None:
    watched = stage.watch("Password:")
    watched.prints("login\nPass", then_s=0.4)
    watched.prints("word: ", then_s=0.49)
    assert watched.life.log.end("stdout") == 16
    assert not watched.told
    watched.clock.pass_by(0.2)

    assert [(told["lines"], told["offset"]) for told in watched.told] == [(["Password: "], 6)]
    watched.clock.pass_by(60)
    watched.prints("secret\n", then_s=60)
    assert len(watched.told) == 1
    assert watched.ends()["suppressed"] == 0


def test_an_unfinished_line_that_did_not_match_is_judged_again_when_whole(stage: Stage) -> None:
    watched = stage.watch({"regex": "^built in .*ms$"})
    watched.prints("built in ", then_s=5)
    watched.prints("12 ms", then_s=0.2)
    watched.prints("\n", then_s=5)

    assert [told["lines"] for told in watched.told] == [["built in 12 ms"]]


def test_a_chatty_stream_does_not_keep_an_unfinished_line_of_the_other_waiting(stage: Stage) -> None:
    watched = stage.watch("Password:")
    watched.prints("Password: ", "stderr")
    for _ in range(20):
        watched.prints("chat\n", then_s=0.05)

    assert [told["stream"] for told in watched.told] == ["stderr"]


def test_a_segment_drawn_again_is_reported_once(stage: Stage) -> None:
    watched = stage.watch("ERROR")
    watched.prints("ERROR 1\rERROR 1\rERROR 2\rERROR 2\n", then_s=1)

    assert watched.told[0]["lines"] == ["ERROR 1", "ERROR 2"]
    assert watched.ends()["suppressed"] == 0


def test_no_more_is_shown_than_fits_and_the_rest_is_counted(stage: Stage) -> None:
    watched = stage.watch("ERROR")
    watched.prints("".join(f"ERROR {number}\n" for number in range(50)), then_s=16)
    watched.prints(("ERROR " + "x" * 494 + "\n") * 7, then_s=16)
    watched.prints("ERROR " + "x" * 5000 + "\nERROR\n", then_s=16)

    lines = [told["lines"] for told in watched.told]
    assert [len(shown) for shown in lines] == [LINES_MAX, 4, 1]
    assert [told["more"] for told in watched.told] == [30, 3, 1]
    assert all(sum(map(len, shown)) <= CHARS_MAX for shown in lines)
    assert lines[2][0].endswith("...[cut]")


def test_lines_before_a_match_are_shown_with_it_once(stage: Stage) -> None:
    watched = stage.watch({"literal": "ERROR", "before": 2}, "WARN")
    watched.prints("one\ntwo\nthree\nERROR a\nfour\nERROR b\nWARN\n", then_s=16)
    watched.prints("one\n\x1b[1mtwo\x1b[0m\nthree\n", then_s=0.01)
    watched.prints("ERROR c\n", then_s=1)

    assert [(told["lines"], told["matched"], told["offset"]) for told in watched.told] == [
        (["two", "three", "ERROR a", "four", "ERROR b", "WARN"], [2, 4, 5], 14),
        (["two", "three", "ERROR c"], [2], 62),
    ]


def test_a_pattern_that_asked_for_once_leaves_after_its_delivery(stage: Stage) -> None:
    watched = stage.watch({"literal": "listening", "once": True}, "ERROR")
    watched.prints("listening\n", then_s=20)
    watched.prints("listening\nERROR\n", then_s=20)
    assert [told["lines"] for told in watched.told] == [["listening"], ["ERROR"]]

    watched.watch.finish()
    watched.watch.begin(2)
    watched.prints("listening\n", then_s=20)

    assert [told["pattern"] for told in watched.told] == ["w1", "w2", "w1"]


@pytest.mark.covers("signals:26")
def test_matches_all_the_time_are_reported_three_times_and_then_only_counted(stage: Stage) -> None:
    watched = stage.watch("ERROR")
    for number in range(480):
        watched.prints(f"fine\nERROR {number}\n", then_s=0.125)
    ended = watched.ends()

    assert watched.times() == [0.0, 15.0, 30.0]
    assert [(told["reason"], told["hits"], told["promoted"]) for told in watched.disabled] == [("strikes", 3, True)]
    assert watched.life.changed == {"notify": "exit"}
    # It was on disk before anybody was told.
    assert watched.states[-1] == "exit"
    shown = sum(len(told["lines"]) + told["more"] + told["suppressed"] for told in watched.told)
    assert shown + watched.disabled[0]["suppressed"] + ended["suppressed"] == 480


@pytest.mark.covers("signals:27")
@pytest.mark.covers("found:10")
def test_a_match_now_and_then_is_reported_as_often_as_it_comes(stage: Stage) -> None:
    watched = stage.watch("ERROR")
    for _ in range(10):
        watched.prints("ERROR\n", then_s=20)

    assert watched.times() == [20.0 * number for number in range(10)]
    assert watched.disabled == []
    assert watched.ends() == {"hits": 10, "suppressed": 0, "unscanned": 0}


@pytest.mark.covers("signals:27")
def test_with_a_lifetime_of_eight_a_match_is_reported_eight_times_and_then_only_counted(stage: Stage) -> None:
    watched = stage.watch("ERROR", lifetime=8)
    watched.life.spec["notify"] = "exit"
    for _ in range(10):
        watched.prints("ERROR\n", then_s=20)

    assert watched.times() == [20.0 * number for number in range(8)]
    assert watched.times("watch_disabled") == [140.0]
    assert watched.disabled == [{"reason": "lifetime", "hits": 8, "suppressed": 0, "promoted": False}]
    assert watched.ends() == {"hits": 8, "suppressed": 2, "unscanned": 0}


@pytest.mark.covers("signals:28")
def test_a_clean_window_forgives_and_what_was_dropped_is_reported_once(stage: Stage) -> None:
    watched = stage.watch("ERROR")
    # A strike, a strike, a clean window, a strike.
    for at in (0.0, 1.0, 2.0, 3.0, 4.0, 15.0, 16.0, 30.0, 45.0, 46.0, 61.0):
        watched.clock.pass_by(at - watched.clock.passed)
        watched.prints("ERROR\n")
    watched.clock.pass_by(1)

    assert [told["suppressed"] for told in watched.told] == [0, 4, 1, 0, 1]
    assert not watched.disabled


def test_what_was_printed_before_the_end_is_reported_before_it(stage: Stage) -> None:
    watched = stage.watch("ERROR", "last words")
    watched.prints("ERROR\nthese are my last words")

    ended = watched.ends()

    assert [told["lines"] for told in watched.told] == [["ERROR", "these are my last words"]]
    assert ended["hits"] == 1


@pytest.mark.covers("signals:31")
def test_output_after_the_end_belongs_to_no_consumer(stage: Stage) -> None:
    watched = stage.watch("ERROR")
    watched.watch.finish()
    watched.prints("ERROR of a descendant\n", then_s=20)
    assert not watched.told

    watched.watch.begin(2)
    watched.prints("ERROR of the next attempt\n", then_s=20)

    assert [told["lines"] for told in watched.told] == [["ERROR of the next attempt"]]
    assert watched.ends() == {"hits": 1, "suppressed": 0, "unscanned": 0}


def test_an_attempt_continues_with_the_counters_of_the_one_before(stage: Stage) -> None:
    watched = stage.watch("ERROR", lifetime=8)
    for attempt in range(1, 11):
        watched.watch.begin(attempt)
        watched.prints("ERROR\n", then_s=20)
        watched.watch.finish()

    assert [told["hits"] for told in watched.told] == [1, 2, 3, 4, 5, 6, 7, 8]
    assert len(watched.disabled) == 1


@pytest.mark.covers("signals:31")
def test_a_regex_that_takes_too_long_ends_the_watching(stage: Stage) -> None:
    watched = stage.watch("ERROR", {"regex": "(?:a|aa)*$"})
    watched.prints("ERROR\n")
    for _ in range(5):
        watched.prints("a" * 60 + "!\n", then_s=0.01)
    watched.prints("ERROR\n", then_s=20)

    assert [told["lines"] for told in watched.told] == [["ERROR"]]
    assert [(told["reason"], told["promoted"]) for told in watched.disabled] == [("too_slow", True)]
    ended = watched.ends()
    assert ended["hits"] == 1
    assert ended["unscanned"] > 0


def test_what_the_log_dropped_before_it_was_looked_at_is_counted(stage: Stage) -> None:
    watched = stage.watch("ERROR", cap_bytes=1 << 20)
    filler = b"." * 99 + b"\n"
    # So quickly that no slice comes between.
    watched.life.prints(b"ERROR early\n")
    for _ in range(40):
        watched.life.prints(filler * 1000)
    watched.prints(b"ERROR late\n", then_s=1)

    ended = watched.ends()

    assert [told["lines"] for told in watched.told] == [["ERROR late"]]
    first = watched.life.log.first("stdout")
    assert ended["unscanned"] == first > 0
    assert watched.life.runner_log.warnings == [f"{first} bytes were not searched for watch patterns"]


def test_a_pattern_added_later_looks_at_what_comes_later(stage: Stage) -> None:
    watched = stage.watch("ERROR")
    watched.prints("done\n", then_s=1)
    watched.watch.add(pattern(2, "done"))
    watched.prints("done\n", then_s=1)
    assert [told["pattern"] for told in watched.told] == ["w2"]

    assert watched.watch.remove("w2")
    assert not watched.watch.remove("w2")
    watched.prints("done\n", then_s=20)
    assert len(watched.told) == 1
    assert [each["id"] for each in watched.watch.facts()["watch"]["patterns"]] == ["w1"]


def test_there_are_no_more_patterns_than_can_be_looked_for(stage: Stage) -> None:
    watched = stage.watch(*(f"pattern {number}" for number in range(16)))

    with pytest.raises(BadPattern, match="at most 16"):
        watched.watch.add(pattern(17, "one more"))

    watched.watch.remove("w1")
    watched.watch.add(pattern(17, "one more"))


def test_an_expression_that_only_the_host_knows_is_left_out_and_that_is_said(stage: Stage) -> None:
    watched = stage.watch({"regex": "(?unknown)x"}, "ERROR")
    watched.prints("ERROR\n", then_s=1)

    assert [told["pattern"] for told in watched.told] == ["w2"]
    [warning] = watched.life.runner_log.warnings
    assert warning.startswith("watch pattern w1 is not searched for: not a regular expression")


def test_nothing_ticks_while_nothing_is_printed(stage: Stage) -> None:
    watched = stage.watch("ERROR", {"regex": "x.*y"})
    assert watched.clock.armed == 0
    watched.prints("ERROR\nunfinished", then_s=20)

    assert watched.clock.armed == 0


def test_the_counters_travel_in_the_facts(stage: Stage) -> None:
    watched = stage.watch("ERROR")
    assert watched.watch.facts()["watch"]["until"] is None
    watched.prints("ERROR\n", then_s=1)
    watched.prints("ERROR\n", then_s=1)

    facts = watched.watch.facts()["watch"]

    parts = ("state", "hits", "strikes", "suppressed", "until", "disabled", "unscanned")
    assert {part: facts[part] for part in parts} == {
        "state": "struck",
        "hits": 1,
        "strikes": 1,
        "suppressed": 1,
        "until": 1015_000_000_000,
        "disabled": None,
        "unscanned": 0,
    }


def test_a_strike_is_written_down_once(stage: Stage) -> None:
    """On faulty code the state record knew of it only after the next match that was told."""
    watched = stage.watch("ERROR")
    watched.prints("ERROR\n", then_s=1)
    written = len(watched.states)

    watched.prints("ERROR\nERROR\n", then_s=1)
    watched.prints("ERROR\n", then_s=1)

    assert len(watched.states) == written + 1


# What was typed.


def test_the_echo_of_what_was_typed_is_no_match_but_its_answer_is(stage: Stage) -> None:
    watched = stage.watch("ERROR", tty=True)
    watched.watch.typed(b"echo ERR")
    watched.watch.typed(b"OX\x7fR\r")
    watched.prints("$ echo ERROR\r\n", "tty", then_s=0.3)
    assert not watched.told

    watched.prints("ERROR\r\n", "tty", then_s=0.3)

    assert [told["lines"] for told in watched.told] == [["ERROR"]]


def test_a_program_that_prints_what_it_was_given_matches_once(stage: Stage) -> None:
    watched = stage.watch("ERROR", tty=True)
    watched.watch.typed(b"ERROR\n")
    watched.prints("ERROR\r\nERROR\r\n", "tty", then_s=1)

    assert [told["lines"] for told in watched.told] == [["ERROR"]]


def test_a_shell_that_shows_what_was_typed_too_early_again_does_not_match(stage: Stage) -> None:
    watched = stage.watch("ERROR", tty=True)
    watched.watch.typed(b"make ERROR\r")
    watched.prints("make ERROR\r\n\x1b[32muser@box\x1b[0m:~$ make ERROR\r\n", "tty", then_s=1)

    assert not watched.told


def test_a_question_that_was_answered_is_no_match_for_its_answer(stage: Stage) -> None:
    watched = stage.watch("ERROR", {"regex": "^Name"}, tty=True)
    watched.prints("Log name: ", "tty", then_s=0.1)
    watched.watch.typed(b"ERROR\r")
    watched.prints("ERROR\r\n", "tty", then_s=1)
    assert not watched.told

    watched.watch.typed(b"x\r")
    watched.prints("Name: x\r\n", "tty", then_s=1)
    assert [told["pattern"] for told in watched.told] == ["w2"]


def test_what_was_typed_long_ago_explains_nothing(stage: Stage) -> None:
    watched = stage.watch("ERROR", tty=True)
    watched.watch.typed(b"ERROR\r")
    watched.clock.pass_by(2.1)
    watched.prints("ERROR\r\n", "tty", then_s=1)

    assert len(watched.told) == 1


def test_over_pipes_there_is_no_echo(stage: Stage) -> None:
    watched = stage.watch("ERROR")
    watched.watch.typed(b"ERROR\n")
    watched.prints("ERROR\n", then_s=1)

    assert len(watched.told) == 1


# Whatever is printed in whatever pieces, over the sieve or past it, the same lines are found.

_pieces = st.lists(
    st.sampled_from([b"ERROR", b"fine", b" ", b"\n", b"\n", b"\r\n", b"\x1b[31m", b"ER\x1b[0mROR", "\u00e9".encode()]),
    min_size=1,
    max_size=25,
)


@given(_pieces, st.data())
@settings(max_examples=40, deadline=None)
def test_no_cut_of_the_output_changes_what_is_reported(
    tmp_path_factory: pytest.TempPathFactory, pieces: list[bytes], data: st.DataObject
) -> None:
    printed = b"".join(pieces)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(printed)), max_size=5)))
    with ExitStack() as stack:
        stage = Stage(tmp_path_factory.mktemp("cuts"), stack)
        found = []
        for borders in ([], cuts, list(range(1, len(printed)))):
            watched = stage.watch("ERROR", {"regex": "f.*e", "before": 1})
            for begin, end in zip([0, *borders], [*borders, len(printed)], strict=True):
                watched.prints(printed[begin:end])
                watched.clock.pass_by(0)
            watched.ends()
            found.append(watched.told)
        assert found[0] == found[1] == found[2]
