"""Reading the log of a terminal as text: pages, the last lines, searching and waiting, from any offset on."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from holdfast.runner.log import FRAME_BYTES
from holdfast.sessions import terminal_log
from holdfast.sessions.recording import Recording
from holdfast.sessions.search import Matcher, search
from holdfast.sessions.terminal_log import Reading
from holdfast.terminal.log_text import TerminalText, joined
from support.session_files import TerminalFiles, terminal_files
from support.stage import Stage, on_stage

if TYPE_CHECKING:
    from holdfast import Holdfast
    from support.world import World

FULL = b"\x1b[?1049h\x1b[H\x1b[2J"
LEAVE = b"\x1b[?1049l"


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., TerminalFiles]]:
    with terminal_files(tmp_path / "p00000001", monkeypatch) as make:
        yield make


@pytest.fixture
def session(make: Callable[..., TerminalFiles]) -> TerminalFiles:
    return make()


def pages(session: TerminalFiles, limit: int) -> list[str]:
    found, cursor = [], "0"
    while True:
        page = session.read.read(cursor, limit=limit)
        found.append(page.text)
        cursor = page.cursor
        if not page.more:
            return found


@pytest.mark.covers("terminal:16")
@pytest.mark.parametrize("limit", range(1, 9))
def test_characters_and_sequences_cut_between_reads_come_out_whole(session: TerminalFiles, limit: int) -> None:
    text = "é € 😀 漢\r\n\x1b[38;5;196mred\x1b[0m \x1b]0;titel é\x07end \ufffd"
    data = text.encode()
    for begin in range(0, len(data), 3):
        session.prints(data[begin : begin + 3])
    session.ends()
    assert "".join(pages(session, limit)) == "é € 😀 漢\nred end \ufffd"


@pytest.mark.covers("terminal:16")
def test_a_character_that_is_not_complete_waits_for_its_rest(session: TerminalFiles) -> None:
    session.prints(b"price: 5 \xe2\x82")
    first = session.read.read()
    assert (first.text, first.data) == ("price: 5 ", b"price: 5 \xe2\x82")
    session.prints(b"\xac\r\n\xff\x80")
    assert session.read.read(first.cursor).text == "\u20ac\n\ufffd\ufffd"
    end = session.read.read().cursor
    session.prints(b"\xf0\x9f")
    assert session.read.read(end).text == ""
    session.ends()
    # Nothing more will come.
    assert session.read.read(end).text == "\ufffd"


def test_segments_cut_no_character(make: Callable[..., TerminalFiles]) -> None:
    files = make(segment_bytes=7)
    for character in "ab€😀漢字é" * 20:
        files.prints(character.encode())
    assert files.read.read().text.replace("\n", "") == "ab€😀漢字é" * 20


def test_a_page_from_the_middle_of_a_full_screen_stretch_is_the_screen(session: TerminalFiles) -> None:
    session.prints(b"$ edit\r\n")
    session.prints(FULL + b"menu\x1b[3;1Hbody", after=1)
    cursor = session.read.read().cursor
    session.prints(b"\x1b[3;1HBODY", after=2)
    assert session.read.read(cursor).text == "[full screen: 2.0 s]\nmenu\n\nBODY\n"
    session.prints(LEAVE + b"$ exit\r\n", after=0.5)
    assert session.read.read(cursor).text == "[full screen: 2.5 s]\nmenu\n\nBODY\n$ exit\n"
    assert session.read.read().text == "$ edit\n[full screen: 2.5 s]\nmenu\n\nBODY\n$ exit\n"


def test_a_jump_over_missing_bytes_begins_a_new_line(make: Callable[..., TerminalFiles]) -> None:
    files = make(segment_bytes=16)
    for number in range(6):
        files.prints(b"line %07d\x1b[1m\r\n" % number)
    sorted(files.path.glob("tty.0*"))[2].unlink()
    page = files.read.read()
    assert page.text == "".join(f"line {number:07d}\n" for number in (0, 1, 3, 4, 5))
    assert [(gap.start, gap.stop, gap.reason) for gap in page.gaps] == [(36, 54, "missing")]


def test_a_stretch_that_began_in_dropped_output_is_still_no_text(make: Callable[..., TerminalFiles]) -> None:
    files = make(cap_bytes=4096, segment_bytes=1024)
    files.prints(b"$ top\r\n" + FULL)
    state = {"alt": True, "alt_entry": 7, "offset": 30}
    (files.path / "marks.jsonl").write_text(json.dumps({"offset": 30, "state": state}) + '\n{"torn')
    for number in range(500):
        files.prints(b"\x1b[3;1Hload %04d \x1b[4;1Htasks" % number)
    files.prints(LEAVE + b"$ exit\r\n")
    assert files.read.dropped_before()["tty"] > 30
    assert files.read.read().text.splitlines() == ["[full screen: 0.0 s]", "", "", "load 0499", "tasks", "$ exit"]
    assert files.read.tail(2).text == "tasks\n$ exit\n"


@pytest.mark.covers("terminal:43")
def test_the_size_of_each_moment_decides_where_lines_wrapped(session: TerminalFiles) -> None:
    session.prints(b"x" * 100 + b"\rX\r\n")
    session.resizes(24, 200)
    session.prints(b"y" * 100 + b"\rY\r\n")
    session.resizes(24, 10)
    session.prints(b"z" * 100 + b"\rZ\r\n")
    assert session.read.read().text.split() == ["x" * 80 + "X" + "x" * 19, "Y" + "y" * 99, "z" * 90 + "Z" + "z" * 9]


def test_a_mark_reports_the_size_where_the_frames_do_not_any_more(session: TerminalFiles) -> None:
    session.resizes(24, 200)
    session.prints(b"first\r\n")
    session.prints(b"y" * 100 + b"\rY\r\n")
    frames = session.path / "frames"
    frames.write_bytes(frames.read_bytes()[3 * FRAME_BYTES :])
    wrapped = "y" * 80 + "Y" + "y" * 19
    assert session.read.read().text.splitlines()[1] == wrapped
    mark = {"offset": 0, "size": [24, 200], "state": {"alt": False}}
    (session.path / "marks.jsonl").write_text(json.dumps(mark) + "\n")
    assert session.read.read().text.splitlines()[1] == "Y" + "y" * 99
    assert Recording(session.files).header().cols == 200


@pytest.mark.parametrize("count", [0, 1, 3, 7, 5000])
def test_the_last_lines_are_those_of_the_whole_text(session: TerminalFiles, count: int) -> None:
    for number in range(3000):
        session.prints(b"%4d \x1b[32mgreen line\x1b[0m of some length, to fill more than one block\r\n" % number)
    session.prints(b"".join(b"\r%3d%%" % percent for percent in range(101)) + b"\r\n$ ")
    lines = session.read.read(limit=1 << 30).text.split("\n")
    assert lines[-3:] == ["100%", "[rewritten 100 times]", "$ "]
    page = session.read.tail(count)
    assert page.text == "\n".join(lines[-count:] if count else [])
    assert (page.more, page.cursor) == (False, session.read.cursor())
    if 3 < count < 5000:
        assert page.data.startswith(b"2996 \x1b[32mgreen")


def test_the_last_lines_of_a_long_full_screen_stretch_are_its_screen(session: TerminalFiles) -> None:
    session.prints(b"$ watch\r\n" + FULL)
    for number in range(4000):
        session.prints(b"\x1b[H\x1b[2Jframe %d\x1b[2;1H" % number + b"\x1b[3mfilled\x1b[0m " * 8)
    last = f"frame 3999\n{'filled ' * 7}filled\n"
    assert session.read.tail(3).text == f"[full screen: 0.0 s]\n{last}"
    assert session.read.tail(2).text == last
    session.prints(LEAVE + b"$ ")
    assert session.read.tail(2).text == last.split("\n", 1)[1] + "$ "


def test_lines_longer_than_the_limit_are_said_to_be_cut(session: TerminalFiles) -> None:
    session.prints(b"x" * 5000 + b"\r\nend\r\n")
    page = session.read.tail(5, limit=1000)
    assert page.more
    assert page.text.endswith("x\nend\n")


def test_searching_finds_last_states_with_their_offsets_and_context(session: TerminalFiles) -> None:
    session.prints(b"begin\r\n")
    session.prints(b"".join(b"\rload %d%%" % percent for percent in (50, 100)) + b"\r\n")
    session.prints(b"mid\r\n\x1b[2A\x1b[5Cdone\r\n\x1b[B" + FULL + b"panel" + LEAVE + b"last\r\n")
    whole = "begin\nload done\nmid\n[full screen: 0.0 s]\npanel\nlast\n"
    assert session.read.read().text == whole
    assert search(session.read, "50%|100%") == []
    (hit,) = search(session.read, "lo.d", context=1)
    assert (hit.text, hit.before, hit.after, hit.spans, hit.offset, hit.line) == (
        "load done", ["begin"], ["mid"], [(0, 4)], 7, 2,
    )  # fmt: skip
    assert [each.text for each in search(session.read, "^", newest=True, limit=3)] == [
        "last",
        "panel",
        "[full screen: 0.0 s]",
    ]
    assert [each.after for each in search(session.read, "panel|last", context=2)] == [["last"], []]


def test_searching_reads_a_large_log_once_in_blocks(session: TerminalFiles) -> None:
    for number in range(20_000):
        session.prints(b"line %05d of a build that prints quite a lot, and then some more of it\r\n" % number)
    hits = search(session.read, "9999 of", context=2)
    assert [hit.text[:10] for hit in hits] == ["line 09999", "line 19999"]
    assert [text[:10] for text in hits[0].before + hits[0].after] == [
        "line 09997", "line 09998", "line 10000", "line 10001",
    ]  # fmt: skip
    assert (hits[0].line, hits[0].offset) == (10_000, 9999 * 73)


def _eventful(session: TerminalFiles) -> None:
    """Lines, rewritten ones, coloured ones, wrapped ones, screens of programs, sizes; some of all in each part."""
    for part in range(60):
        session.prints(b"".join(b"part %d line %d\r\n" % (part, n) for n in range(part * 7 % 90)))
        session.prints(b"\x1b[32mok\x1b[0m " + b"wrapped " * 40 + b"%d\r\n" % part)
        session.prints(b"above %d\r\nbelow\r\n\x1b[2A\x1b[K above again %d\r\n\n" % (part, part))
        session.prints(b"".join(b"\rload %d %d%%" % (part, percent) for percent in range(0, 101, 20)) + b"\r\n")
        if part % 3 == 0:
            frames = b"".join(b"\x1b[H panel %d %d \x1b[5;5H%s" % (part, n, b"x" * 60) for n in range(part * 4))
            session.prints(FULL + frames + LEAVE + b"closed %d\r\n" % part)
        if part % 10 == 5:
            session.resizes(24 + part, 80 - part // 2)


@pytest.mark.parametrize("block", [300, 2000, 1 << 20])
def test_the_newest_hits_are_those_of_the_whole_log_in_the_other_order(
    session: TerminalFiles, monkeypatch: pytest.MonkeyPatch, block: int
) -> None:
    _eventful(session)
    oldest = search(session.read, "^", context=2)
    monkeypatch.setattr(terminal_log, "PIECE_BYTES", block)
    monkeypatch.setattr(terminal_log, "_TAIL_BYTES", 20_000)
    newest = search(session.read, "^", context=2, newest=True)
    fields = ("offset", "text", "spans", "before", "after")
    assert [[getattr(hit, name) for name in fields] for hit in reversed(newest)] == [
        [getattr(hit, name) for name in fields] for hit in oldest
    ]


def test_the_newest_hits_come_before_the_rest_is_read(session: TerminalFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(50_000):
        session.prints(b"line %05d of a build that prints quite a lot, and then some more of it\r\n" % number)
    read: list[int] = []
    feed = Reading.feed

    def counted(reading: Reading, offset: int, data: bytes) -> list[tuple[int, str]]:
        read.append(len(data))
        return feed(reading, offset, data)

    monkeypatch.setattr(Reading, "feed", counted)
    hits = search(session.read, "of a build", context=1, newest=True, limit=100)
    assert [hit.text[:10] for hit in hits] == [f"line {n:05}" for n in range(49_999, 49_899, -1)]
    assert sum(read) < 200_000


def test_a_match_is_found_on_the_screen_wherever_the_reads_were_cut(session: TerminalFiles) -> None:
    data = b"start\r\n" + b"".join(b"\rinstalling %d%%" % percent for percent in range(101)) + b"\r\n$ "
    matcher = Matcher(r"^\$ $", log=session.read)
    found = []
    for at in range(0, len(data), 5):
        session.prints(data[at : at + 5])
        match = matcher.feed("tty", at, data[at : at + 5])
        if match is not None:
            found.append((match.text, match.offset, match.end))
    assert found[0] == ("$ ", len(data) - 2, len(data))
    matcher = Matcher("start", log=session.read)
    match = matcher.feed("tty", 0, data)
    assert match is not None
    assert (match.text, match.offset, match.end, match.span) == ("start", 0, 7, (0, 5))


def test_a_full_screen_is_matched_as_it_stands(session: TerminalFiles) -> None:
    matcher = Matcher("Press F1", log=session.read)
    session.prints(FULL + b"wait")
    assert matcher.feed("tty", 0, FULL + b"wait") is None
    session.prints(b"\x1b[2;3HPress F1")
    match = matcher.feed("tty", len(FULL) + 4, b"\x1b[2;3HPress F1")
    assert match is not None
    assert match.text == "  Press F1"


def test_a_session_that_is_resized_while_it_is_read_is_read_at_its_size(session: TerminalFiles) -> None:
    session.prints(b"a\r\n")
    with session.read.snapshot() as snapshot:
        reading = Reading(snapshot, 0, live=True)
    lines = reading.feed(0, b"a\r\n")
    session.resizes(24, 100)
    session.prints(b"b" * 90 + b"\rB\r\n")
    lines += reading.feed(3, b"b" * 90 + b"\rB\r\n") + reading.finish()
    assert [text for _, text in lines] == ["a\n", "B" + "b" * 89 + "\n", ""]


CURSES = """
    import curses, sys
    def draw(screen):
        curses.curs_set(0)
        for step in range(60):
            screen.erase()
            screen.border()
            screen.addstr(2, 4, f"step {step}")
            screen.refresh()
        if sys.argv[1:]:
            screen.clear()
            screen.refresh()
    curses.wrapper(draw)
    print("left curses")
"""


@pytest.mark.covers("terminal:43")
@pytest.mark.parametrize("clearing", [[], ["clearing"]])
def test_a_finished_curses_program_leaves_its_last_frame(tmp_path: Path, clearing: list[str]) -> None:
    (tmp_path / "draw.py").write_text(textwrap.dedent(CURSES))
    with on_stage(sys.executable, str(tmp_path / "draw.py"), *clearing) as stage:
        lines = read_to_the_end(stage)
    assert lines[0] == "[full screen]"
    assert lines[3] == "\u2502" + "   step 59".ljust(78) + "\u2502"
    assert lines[-1] == "left curses"
    assert not set("".join(lines)) & set(map(chr, [*range(32), 127]))


@pytest.mark.covers("terminal:43")
def test_a_pager_is_reported_as_its_last_page(tmp_path: Path) -> None:
    (tmp_path / "numbers").write_text("".join(f"number {each}\n" for each in range(1, 200)))
    with on_stage("less", "-~", str(tmp_path / "numbers")) as stage:
        stage.read_until(b"number 23")
        stage.send(b" ")
        stage.read_until(b"number 46")
        stage.send(b"q")
        lines = read_to_the_end(stage)
    assert lines[0] == "[full screen]"
    # The last row held the prompt, which less took away.
    assert lines[1:24] == [f"number {each}" for each in range(24, 47)]
    assert not "".join(lines[24:])


@pytest.mark.covers("terminal:43")
def test_apt_is_reported_by_its_last_states() -> None:
    if shutil.which("apt-get") is None:
        pytest.skip("no apt-get here")
    with on_stage("apt-get", "--simulate", "install", "coreutils") as stage:
        lines = read_to_the_end(stage)
    assert b"%\r" in stage.printed
    assert {"Reading package lists... Done", "Building dependency tree... Done"} <= set(lines)
    assert sum("Reading package lists" in line for line in lines) == 1


def read_to_the_end(stage: Stage) -> list[str]:
    """All it printed, as text, once it has ended."""
    while True:
        try:
            chunk = os.read(stage.master, 65536)
        except OSError:
            break
        stage.printed += chunk
    reader = TerminalText(24, 80)
    return joined(reader.feed_lines(stage.printed) + reader.flush_lines()).splitlines()


NPM = r"""
    printf 'npm warn deprecated left-pad\n'
    for n in 1 2 3 4 5 6; do for s in '⠙' '⠹' '⠸' '⠼'; do printf '%s\033[1G\033[0K' "$s"; done; done
    printf '\nadded 2 packages in 1s\n⠦\033[1G\033[0K'
"""


@pytest.mark.covers("terminal:43")
def test_a_real_session_is_read_as_last_states(hf: Holdfast) -> None:
    bar = "for i in $(seq 0 100); do printf '\\rprogress %3d%%' $i; done; echo\n"
    wheel = "printf '\\033[?1049h\\033[H\\033[2Jfull\\033[2;2Hscreen'; printf '\\033[2J\\033[?1049l'\n"
    done = hf.run(bar + textwrap.dedent(NPM) + wheel + "printf 'caf\\303\\251 \\377\\n'; exit 3", tty=True, wait=20)
    assert done.exit is not None
    assert done.exit.code == 3
    lines = done.text().splitlines()
    assert lines[:2] == ["progress 100%", "[rewritten 100 times]"]
    assert lines[2:5] == ["npm warn deprecated left-pad", "", "added 2 packages in 1s"]
    assert re.fullmatch(r"\[full screen: \d+\.\d s\]", lines[5])
    assert lines[6:] == ["full", " screen", "café \ufffd"]
    assert [hit.text for hit in done.search("caf|^ scr")] == [" screen", "café \ufffd"]
    assert done.tail(2) == " screen\ncafé \ufffd\n"


def test_the_command_line_shows_a_terminal_as_text(world: World) -> None:
    script = "for i in 1 2 3 4 5; do printf '\\rstep %d' $i; done; echo; seq 1 60"
    script += "; printf '\\033[3A\\033[2Kgone\\033[3B\\rend\\n'"
    hf = world.open()
    done = hf.run(script, tty=True, size=(10, 40), wait=20)
    expected = ["step 5", "[rewritten 4 times]", *map(str, range(1, 58)), "gone", "59", "60", "end"]
    assert world.hold("logs", done.id, check=True).stdout.splitlines() == expected
    assert world.hold("logs", done.id, "-n", "3", check=True).stdout.splitlines() == expected[-3:]
    followed = world.hold("logs", "-f", done.id, check=True).stdout.splitlines()
    assert [line for line in followed if line in ("58", "gone")] in (["gone"], ["58", "gone"])
    assert followed[-1] == "end"
    assert '"text": "59\\n60\\nend\\n"' in world.hold("logs", done.id, "-n", "3", "--json", check=True).stdout
    assert world.hold("search", done.id, "^gone$").stdout.endswith("gone\n")


def test_a_follower_of_a_terminal_sees_lines_that_are_still_on_the_screen(world: World) -> None:
    live = world.open().start("printf 'one\\ntwo\\n10%%\\r20%%\\r'; read -r line", tty=True)
    follower = world.program(world.hold_argv("logs", "-f", live.id))
    assert [follower.line(), follower.line()] == ["one", "two"]
    live.kill()
