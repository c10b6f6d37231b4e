"""Recordings of terminal sessions: from log and frames to files that any player of asciicasts shows the same."""

from __future__ import annotations

import json
import sys
import textwrap
import tracemalloc
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import asciinema.asciicast  # type: ignore[import-untyped]
import pytest
from asciinema_scene.scenelib.scene_content import SceneContent  # type: ignore[import-untyped]
from avt._avt import Vt
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast import errors
from holdfast.cli import parser_of
from holdfast.runner import log as runner_log
from holdfast.sessions.observe import read_files
from holdfast.sessions.recording import Recording
from holdfast.terminal.recording import Header, Mark, Output, Tally, events, written
from support import waiting
from support.scale import scaled
from support.session_files import START_MONO_NS, START_WALL_NS, TerminalFiles, terminal_files

if TYPE_CHECKING:
    from holdfast import Holdfast
    from support.world import World

Events = list[tuple[int, str, str]]


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., TerminalFiles]]:
    with terminal_files(tmp_path / "p00000001", monkeypatch) as make:
        yield make


@pytest.fixture
def session(make: Callable[..., TerminalFiles]) -> TerminalFiles:
    return make(command=["vim", "a file"])


def exported(session: TerminalFiles, form: str = "asciicast3", **options: Any) -> list[str]:
    return b"".join(Recording(session.files, **options).write(form)).decode().splitlines()


def events_of(session: TerminalFiles, **options: Any) -> Events:
    return list(Recording(session.files, **options).events())


def printed(found: Iterable[tuple[int, str, str]]) -> str:
    return "".join(data for _, code, data in found if code == "o")


def test_a_recording_reports_sizes_output_and_exit_at_their_times(session: TerminalFiles) -> None:
    session.prints(b"hello\r\n", after=0.25)
    session.resizes(30, 100, after=1)
    session.prints(b"wide", after=0.25)
    session.ends(3, after=2)
    begun = f'"timestamp": {START_WALL_NS // 10**9}, "command": "vim \'a file\'"'
    assert exported(session) == [
        '{"version": 3, "term": {"cols": 80, "rows": 24, "type": "xterm-256color"}, ' + begun + "}",
        '[0.250000, "o", "hello\\r\\n"]',
        '[1.000000, "r", "100x30"]',
        '[0.250000, "o", "wide"]',
        '[2.000000, "x", "3"]',
    ]
    assert exported(session, "asciicast2") == [
        '{"version": 2, "width": 80, "height": 24, ' + begun + ', "env": {"TERM": "xterm-256color"}}',
        '[0.250000, "o", "hello\\r\\n"]',
        '[1.250000, "r", "100x30"]',
        '[1.500000, "o", "wide"]',
    ]


def test_a_session_that_runs_is_recorded_as_far_as_it_is(session: TerminalFiles) -> None:
    session.prints(b"one", after=1)
    lines = Recording(session.files).write("asciicast3")
    next(lines)
    session.prints(b"two", after=1)
    # What came after the beginning of the export is for the next one.
    assert [json.loads(line) for line in lines] == [[1.0, "o", "one"]]
    assert printed(events_of(session)) == "onetwo"


def test_a_signal_that_ended_the_command_is_reported_as_a_shell_does(session: TerminalFiles) -> None:
    session.prints(b"x")
    session.ends(None, "SIGKILL")
    assert events_of(session)[-1][1:] == ("x", "137")


@pytest.mark.covers("terminal:46")
@given(st.lists(st.integers(1, 4), min_size=1, max_size=30))
@settings(max_examples=scaled(20, 60), deadline=None)
def test_characters_cut_between_reads_move_whole_into_the_next_event(sizes: list[int]) -> None:
    data = "aé€😀 literal \ufffd".encode() + b" \xff \xe2\x82 \xf0\x9f\x98 end \xe2"
    moments, at = [], 0
    while at < len(data):
        for size in sizes:
            moments.append(Output(at, data[at : at + size]))
            at += size
    tally = Tally()
    text = printed(events(moments, tally))
    assert text == data.decode("utf-8", "replace")
    assert tally.invalid == 4
    assert not any("\ufffd" in each and each != "\ufffd" and "€" in each for each in text.split())


@pytest.mark.covers("terminal:46")
def test_a_recording_survives_invalid_bytes_and_counts_them(session: TerminalFiles) -> None:
    session.prints(b"ok \xff\xfe \xe2\x82")
    session.prints(b"\xac \xc3(\r\n")
    session.ends()
    recording = Recording(session.files)
    lines = b"".join(recording.write("asciicast3")).decode().splitlines()
    assert json.loads(lines[1])[2] == "ok \ufffd\ufffd "
    assert json.loads(lines[2])[2] == "\u20ac \ufffd(\r\n"
    assert recording.tally.invalid == 3
    assert b"".join(Recording(session.files).write("raw")) == b"ok \xff\xfe \xe2\x82\xac \xc3(\r\n"


def test_pauses_are_no_longer_than_the_limit(session: TerminalFiles) -> None:
    for pause in (0.5, 30, 1, 3600):
        session.prints(b"x", after=pause)
    times = [at for at, _, _ in events_of(session, idle_limit=2)]
    assert times == [500_000, 2_500_000, 3_500_000, 5_500_000]


@pytest.mark.parametrize(
    "since, until, expected",
    [
        (None, None, "0123456789"),
        (0, 4, "0123"),
        ("tty:2", "6", "2345"),
        ("3s", None, "456789"),
        ("2s", "4s", "2345"),
        ("1h", None, ""),
        (10, 10, ""),
    ],
)
def test_a_part_is_between_two_offsets_or_times(
    session: TerminalFiles, since: str | int | None, until: str | int | None, expected: str
) -> None:
    for number in range(0, 10, 2):
        session.prints(b"%d%d" % (number, number + 1), after=1)
    assert b"".join(Recording(session.files, since=since, until=until).write("raw")).decode() == expected


@pytest.mark.parametrize("since, until", [(11, None), (None, 11), (5, 4), ("x:3", None), ("soon", None)])
def test_a_part_that_is_invalid_is_refused(session: TerminalFiles, since: Any, until: Any) -> None:
    session.prints(b"0123456789")
    with pytest.raises(errors.HoldfastError):
        Recording(session.files, since=since, until=until)


def test_only_terminals_are_recorded(session: TerminalFiles) -> None:
    session.spec["tty"] = None
    with pytest.raises(errors.NotATty):
        Recording(session.files)
    session.spec["tty"] = {"term": None}
    with pytest.raises(errors.BadArgument):
        Recording(session.files).write("gif")


@given(st.integers(0, 60), st.sampled_from([b"\x07", b"\x1b\\", b"\xc2\x9c"]))
@settings(max_examples=scaled(20, 80), deadline=None)
def test_shell_marks_are_markers_wherever_they_were_cut(cut: int, end: bytes) -> None:
    mark = b"\x1b]133;%b" + end
    data = mark % b"A" + b"$ " + mark % b"B" + b"ls" + mark % b"C;cmdline=ls" + b"a b\r\n" + mark % b"D;127" + b"."
    cut = min(cut, len(data))
    found = list(events([Output(0, data[:cut]), Output(5000, data[cut:])], Tally()))
    assert [text for _, code, text in found if code == "m"] == ["prompt", "output", "exit 127"]
    assert printed(found) == data.decode()
    before = ""
    for _, code, text in found:
        if code == "m":
            assert before.encode().endswith(end)
        before += text if code == "o" else ""


def test_signals_are_markers(session: TerminalFiles) -> None:
    session.prints(b"Password: ", after=1)
    session.wait(1)
    signals = [
        {"v": 1, "seq": 1, "mono_ns": START_MONO_NS + 1_500_000_000, "snapshot": {}, "needs_input": {"kind": "secret"}},
        {"v": 1, "seq": 2, "mono_ns": "later", "watch": {"text": "x"}},
    ]
    (session.path / "signals.jsonl").write_text("".join(json.dumps(each) + "\n" for each in signals) + '{"torn')
    session.prints(b"fine\r\n", after=1)
    assert events_of(session) == [
        (1_000_000, "o", "Password: "),
        (1_500_000, "m", "needs_input: secret"),
        (3_000_000, "o", "fine\r\n"),
    ]


def test_what_is_missing_is_said_at_its_place_and_swallows_nothing(make: Callable[..., TerminalFiles]) -> None:
    files = make(segment_bytes=8)
    for piece in (b"first \x1b]0", b";title\x07..", b"lost....", b"\xac shown "):
        files.prints(piece, after=1)
    for gone in sorted(files.path.glob("tty.0*"))[1:3]:
        gone.unlink()
    recording = Recording(files.files)
    found = list(recording.events())
    assert [each for each in found if each[1] == "m"] == [(4_000_000, "m", "17 bytes from 9 on are not there: missing")]
    screen = Vt(80, 24)
    screen.feed_str(printed(found))
    assert screen.view()[0].text.rstrip() == "first \ufffd shown"
    assert [(gap.start, gap.stop) for gap in recording.tally.missing] == [(9, 26)]
    recording = Recording(files.files)
    assert b"".join(recording.write("raw")) == b"first \x1b]0\xac shown "
    assert len(recording.tally.missing) == 1


def test_output_that_the_cap_dropped_is_said_at_the_beginning(make: Callable[..., TerminalFiles]) -> None:
    files = make(cap_bytes=4096, segment_bytes=1024)
    for number in range(1000):
        files.prints(b"line %04d\r\n" % number, after=0.01)
    recording = Recording(files.files)
    first, *rest = recording.events()
    assert first[1:] == ("m", f"{recording.tally.missing[0].stop} bytes from 0 on are not there: dropped")
    assert printed(rest).endswith("line 0998\r\nline 0999\r\n")
    assert "\x18" not in printed(rest)


@pytest.mark.parametrize("damage", ["gone", "torn", "scribbled"])
def test_without_good_frames_every_byte_is_still_there(session: TerminalFiles, damage: str) -> None:
    for number in range(50):
        session.prints(b"%d," % number, after=1)
    frames = session.path / "frames"
    data = frames.read_bytes()
    damaged = {"gone": b"", "torn": data[: len(data) // 2 + 7], "scribbled": data[:320] + b"\xa5" * 320 + data[640:]}
    frames.write_bytes(damaged[damage])
    assert printed(events_of(session)) == "".join(f"{number}," for number in range(50))


@pytest.mark.slow
def test_a_long_session_is_exported_in_constant_memory(session: TerminalFiles) -> None:
    chunk = ("some output \x1b[32mgreen\x1b[0m é漢\r\n" * 1500).encode()
    for _ in range(scaled(40, 100)):
        session.prints(chunk, after=0.001)
    for form in ("asciicast3", "raw", "text"):
        written = 0
        tracemalloc.start()
        try:
            for piece in Recording(session.files).write(form):
                written += len(piece)
            assert tracemalloc.get_traced_memory()[1] < 2 << 20, form
        finally:
            tracemalloc.stop()
        assert written > scaled(1, 3) << 20


def test_text_is_the_plain_text_of_the_part(session: TerminalFiles) -> None:
    session.prints(b"one\r\n10%\r20%\r30%\r40%\r\n\x1b[?1049hpanel\x1b[?1049lend")
    assert exported(session, "text") == [
        "one",
        "40%",
        "[rewritten 3 times]",
        "[full screen: vim, 0.0 s]",
        "panel",
        "end",
    ]
    assert exported(session, "text", since=5, until=12) == ["20%"]


SIZED = st.tuples(st.integers(1, 500), st.integers(1, 1000)).map(lambda size: ("r", f"{size[1]}x{size[0]}"))
SPOKEN = st.tuples(st.sampled_from("oim"), st.text(st.characters(exclude_categories=["Cs"])))


@given(st.lists(st.tuples(st.integers(0, 10**10), st.one_of(SIZED, SPOKEN))), st.sampled_from([2, 3]))
@settings(deadline=None)
def test_what_is_written_is_read_back_the_same(given: list[tuple[int, tuple[str, str]]], version: int) -> None:
    expected: Events = [(at, code, data) for at, (code, data) in sorted(given)]
    header = Header(24, 80, term="vt100", started_at=5, command="cat", title="t\u2028é")
    lines = list(written(header, expected, version))
    # One line is one event for every reader, whatever it takes for the end of a line.
    assert len("".join(lines).splitlines()) == len(lines) == len(expected) + 1
    assert json.loads(lines[0]) == header.to_json(version)
    found, now = [], 0
    for line in lines[1:]:
        time, code, data = json.loads(line)
        now = round(time * 1_000_000) + (now if version == 3 else 0)
        found.append((now, code, data))
    assert found == expected


def replayed(size: tuple[int, int], found: Iterable[tuple[str, str]]) -> tuple[list[str], tuple[int, int]]:
    """The screen that an emulator of another make ends with, given the events that another parser found."""
    screen = Vt(size[1], size[0], 1000)
    for code, data in found:
        if code == "o":
            screen.feed_str(data)
        elif code == "r":
            cols, rows = map(int, data.split("x"))
            screen.resize(cols, rows)
    return [line.text.rstrip() for line in screen.view()], (screen.cursor.row, screen.cursor.col)


def by_asciinema(path: Path) -> tuple[tuple[int, int], list[tuple[str, str]]]:
    with asciinema.asciicast.open_from_url(str(path)) as cast:
        header = cast.v2_header
        return (header["height"], header["width"]), [(code, data) for _, code, data in cast.events()]


def by_scene(path: Path) -> tuple[tuple[int, int], list[tuple[str, str]]]:
    scene = SceneContent.parse(path)
    found = [(frame.tpe, frame.text) for frame in scene.frames]
    # It adds the end of a line where a recording has none.
    if len(found) == len(path.read_text().splitlines()):
        assert found.pop() == ("o", "\r\n")
    return (scene.header["height"], scene.header["width"]), found


DRAWING = """
    import os, signal, sys
    def draw(*_):
        cols, rows = os.get_terminal_size()
        out = "\\x1b[?1049h\\x1b[H\\x1b[2J"
        for row in range(rows):
            out += f"\\x1b[{row + 1};1H\\x1b[3{row % 8}m" + "漢é" * (cols // 3)
        out += f"\\x1b[0m\\x1b[2;3Hsize {rows}x{cols}"
        sys.stdout.buffer.write(out.encode() + b"\\xff\\xe2\\x82.")
        sys.stdout.flush()
    signal.signal(signal.SIGWINCH, draw)
    draw()
    while True:
        signal.pause()
"""


@pytest.mark.covers("terminal:46")
def test_public_parsers_replay_a_real_program_to_the_same_screen_with_its_resizes(hf: Holdfast, tmp_path: Path) -> None:
    live = hf.start([sys.executable, "-c", textwrap.dedent(DRAWING)], tty=True, size=(24, 80))
    for size in ((24, 80), (15, 60), (30, 100)):
        live.resize(*size)
        # To the last that it draws.
        assert live.wait(match="size {}x{}[^.]*[.]".format(*size), timeout=30).reason == "match"
    shown = [row.rstrip() for row in live.screen().text.split("\n")]
    live.kill()
    for form, parsers in (("asciicast2", (by_asciinema, by_scene)), ("asciicast3", (by_scene,))):
        path = tmp_path / f"{form}.cast"
        path.write_bytes(b"".join(Recording(read_files(hf.home, live.id)).write(form)))
        for parse in parsers:
            size, found = parse(path)
            assert size == (24, 80)
            assert [data for code, data in found if code == "r"] == ["60x15", "100x30"]
            screen, _ = replayed(size, found)
            assert screen[1].startswith("漢size 30x100")
            assert screen[: len(shown)] == shown
            assert not any(screen[len(shown) :])


@pytest.mark.covers("terminal:46")
def test_a_real_session_is_exported_while_it_runs_and_after(hf: Holdfast, tmp_path: Path) -> None:
    script = "printf 'caf\\303\\251 \\377\\r\\n'; stty size; read -r line; stty size; exit 5"
    live = hf.start(script, tty=True, size=(24, 80))
    live.wait(match="24 80", timeout=30)
    # The end of the line may come by itself.
    whole = "café \ufffd\r\r\n24 80\r\n"
    waiting.until(lambda: printed(Recording(read_files(hf.home, live.id)).events()) == whole, what=repr(whole))
    live.resize(30, 100)
    live.stop()
    recording = Recording(read_files(hf.home, live.id))
    found = list(recording.events())
    assert ("r", "100x30") in [(code, data) for _, code, data in found]
    assert (found[-1][1], recording.tally.invalid) == ("x", 1)
    path = tmp_path / "real.cast"
    path.write_bytes(b"".join(Recording(read_files(hf.home, live.id)).write("asciicast3")))
    assert by_scene(path)[1] == [(code, data) for _, code, data in found]


def test_a_part_from_the_middle_begins_with_the_screen_as_it_was(session: TerminalFiles) -> None:
    session.prints(b"\x1b[2J\x1b[Htitle\r\n\x1b[31mred \x1b[0mplain\r\n", after=1)
    session.resizes(10, 40, after=1)
    session.prints(b"\x1b[?1049h\x1b[H\x1b[2Jpanel\x1b[4;2H", after=1)
    middle = session.log.ends()["tty"]
    session.prints(b"added\x1b[1;1HP", after=1)
    session.prints(b"\x1b[?1049l$ ", after=1)
    for until in (None, middle + 12):
        header, found = (
            Recording(session.files, since=middle, until=until).header(),
            events_of(session, since=middle, until=until),
        )
        whole = events_of(session, until=until)
        assert (header.rows, header.cols) == (10, 40)
        got = replayed((10, 40), [(code, data) for _, code, data in found])
        assert got == replayed((24, 80), [(code, data) for _, code, data in whole])
        assert found[0][0] == 0


def test_marks_have_short_labels_on_one_line() -> None:
    found = list(events([Mark(0, "watch: " + "a\nb " * 100)], Tally()))
    assert len(found[0][2]) == 80
    assert "\n" not in found[0][2]


def test_frames_know_when_each_byte_came(session: TerminalFiles) -> None:
    session.prints(b"abc", after=1)
    session.prints(b"def", after=2)
    with session.read.snapshot() as snapshot:
        frames = snapshot.whole_frames()
    assert [frames.came_at("tty", offset) for offset in (0, 2, 3, 5, 99)] == [
        START_MONO_NS + second * 10**9 for second in (1, 1, 3, 3, 3)
    ]
    assert frames.resizes("tty") == [(0, 24, 80)]
    assert [record[2:] for record in frames.records()] == [
        ("tty", runner_log.RESIZE, 0, 24 << 16 | 80), ("tty", runner_log.DATA, 0, 3), ("tty", runner_log.DATA, 3, 3),
    ]  # fmt: skip


def export(*words: str) -> int:
    parser, module = parser_of("export")
    code: int = module.export_main(parser.parse(list(words)))
    return code


def test_the_command_line_exports_a_session(world: World, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    done = world.open().run("printf 'one\\r\\n'; printf '\\377two\\r\\n'; exit 4", tty=True, size=(12, 50), wait=20)
    target = tmp_path / "out.cast"
    assert export(done.id, str(target), "--json") == 0
    said = capfd.readouterr()
    assert json.loads(said.out) == {"format": "asciicast3", "from": 0, "to": 13, "invalid": 1, "gaps": []}
    assert "invalid UTF-8 in 1 places" in said.err
    assert json.loads(target.read_text().splitlines()[0])["term"] == {"cols": 50, "rows": 12, "type": "xterm-256color"}
    assert export(done.id, str(tmp_path / "out.txt")) == 0
    assert (tmp_path / "out.txt").read_text() == "one\n\ufffdtwo\n"
    assert export(done.id, str(tmp_path / "out.raw")) == 0
    assert (tmp_path / "out.raw").read_bytes() == b"one\r\r\n\xfftwo\r\r\n"
    capfd.readouterr()
    assert export(done.id, "-", "--format", "asciicast2") == 0
    assert json.loads(capfd.readouterr().out.splitlines()[0])["version"] == 2
    assert sorted(each.name for each in tmp_path.iterdir() if each.suffix == ".part") == []


def test_an_export_that_fails_leaves_no_file(tmp_path: Path, world: World) -> None:
    done = world.open().run("echo x", tty=True, wait=20)
    with pytest.raises(OSError):
        export(done.id, str(tmp_path / "no" / "such" / "directory.cast"))
    with pytest.raises(errors.BadArgument):
        export(done.id, str(tmp_path / "a.cast"), "--from", "999")
    pipes = world.open().run("echo x", wait=20)
    with pytest.raises(errors.NotATty):
        export(pipes.id, str(tmp_path / "a.cast"))
    assert list(tmp_path.glob("a.cast*")) == []
