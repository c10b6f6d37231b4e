"""Recordings shown again: their pace, their sizes, and what they may do to the terminal of whoever watches."""

from __future__ import annotations

import contextlib
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from avt._avt import Vt

from holdfast import errors
from holdfast.cli import parser_of
from holdfast.terminal.asciicast import Header
from holdfast.terminal.grid import Grid, GridFailed
from holdfast.terminal.playing import FRAME_S, play
from support.session_files import TerminalFiles
from support.stage import on_stage

if TYPE_CHECKING:
    from support.world import World

Events = list[tuple[int, str, str]]


class Watched:
    """A clock that only sleeping moves, and all that was written, with its time."""

    def __init__(self) -> None:
        self.now = 100.0
        self.written: list[tuple[float, bytes]] = []

    def clock(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        assert seconds > 0
        self.now += seconds

    def write(self, data: bytes) -> None:
        self.written.append((round(self.now - 100, 6), data))

    @property
    def data(self) -> bytes:
        return b"".join(data for _, data in self.written)


def played(
    found: Events, size: tuple[int, int] | None = None, recorded: tuple[int, int] = (24, 80), **options: float
) -> Watched:
    watched = Watched()
    play(
        Header(*recorded),
        found,
        watched.write,
        sleep=watched.sleep,
        clock=watched.clock,
        size=None if size is None else lambda: size,
        **options,
    )
    return watched


SECOND = 1_000_000


def test_output_comes_at_its_time() -> None:
    found: Events = [(0, "o", "a"), (SECOND // 2, "o", "b"), (SECOND // 2, "m", "mark"), (3 * SECOND, "o", "c")]
    assert played(found).written == [(0, b"a"), (0.5, b"b"), (3, b"c")]
    assert played(found, speed=4).written == [(0, b"a"), (0.125, b"b"), (0.75, b"c")]
    assert played(found, idle_limit=1).written == [(0, b"a"), (0.5, b"b"), (1.5, b"c")]
    assert played(found, speed=2, idle_limit=1).written == [(0, b"a"), (0.25, b"b"), (0.75, b"c")]


def test_who_is_late_does_not_stay_late() -> None:
    watched = Watched()

    def slow(data: bytes) -> None:
        watched.write(data)
        watched.now += 1.5

    found: Events = [(SECOND * number, "o", str(number)) for number in range(5)]
    play(Header(24, 80), found[:2] + found[4:], slow, sleep=watched.sleep, clock=watched.clock)
    assert [at for at, _ in watched.written] == [0, 1.5, 4]


def test_the_limit_of_the_recording_itself_counts_unless_another_is_given() -> None:
    watched = Watched()
    header = Header(24, 80, idle_limit=1)
    found: Events = [(0, "o", "a"), (9 * SECOND, "o", "b")]
    play(header, found, watched.write, sleep=watched.sleep, clock=watched.clock)
    assert watched.written[-1][0] == 1


def test_into_a_pipe_go_the_bytes_without_questions_bells_and_window_operations() -> None:
    noisy = "a\x07\x1b[6n\x1b[c\x1b]52;c;aGk=\x07\x1b[8;50;50t\x1b[31mred\x1b]9;ding\x07\x1b]10;?\x1b\\\x1b[?1049h!"
    watched = played([(0, "o", noisy[:9]), (0, "o", noisy[9:]), (0, "r", "100x30"), (0, "i", "typed"), (0, "x", "0")])
    assert watched.data == b"a\x1b[31mred\x1b[?1049h!"


def test_a_sequence_that_the_end_of_the_recording_cuts_swallows_nothing_after_it() -> None:
    watched = played([(0, "o", "text\x1b]8;;http://" + "x" * 5000)])
    screen = Vt(80, 24)
    screen.feed_str(watched.data.decode() + "\r\nprompt")
    assert screen.view()[1].text.rstrip() == "prompt"


def screen_of(data: bytes, size: tuple[int, int]) -> Vt:
    screen = Vt(size[1], size[0], 1000)
    screen.feed_str("\r\n".join(f"before {number}" for number in range(size[0])))
    screen.feed_str(data.decode())
    return screen


def texts(screen: Vt) -> list[str]:
    return [line.text.rstrip() for line in screen.view()]


DRAWN: Events = [
    (0, "o", "first\r\n\x1b[31mred\x1b[0m\r\n" + "w" * 90 + "\r\n"),
    (SECOND, "r", "40x10"),
    (SECOND, "o", "\x1b[?1049h\x1b[2J\x1b[Hpanel \x1b[4munder\x1b[m\x1b[5;38H漢"),
    (2 * SECOND, "o", "\x1b[10;1Hlast"),
]


@pytest.mark.covers("terminal:46")
@pytest.mark.parametrize("size", [(10, 40), (24, 80), (50, 200)])
def test_on_a_terminal_it_is_painted_at_its_own_sizes_whatever_the_terminal_has(size: tuple[int, int]) -> None:
    grid = Grid(24, 80)
    grid.feed(DRAWN[0][2].encode())
    grid.resize(10, 40)
    grid.feed((DRAWN[2][2] + DRAWN[3][2]).encode())
    screen = screen_of(played(DRAWN, size).data.removesuffix(b"\r\n"), size)
    assert texts(screen)[:10] == [row.text.rstrip() for row in grid.rows()]
    assert not any(texts(screen)[10:])
    assert (screen.view()[0].cells[0].pen.underline, screen.view()[0].cells[6].pen.underline) == (False, True)


def test_what_does_not_fit_is_cut_around_the_cursor() -> None:
    found: Events = [(0, "o", "".join(f"\x1b[{row};1Hrow {row} " + "=" * 70 for row in range(1, 25)) + "\x1b[20;6H")]
    screen = screen_of(played(found, (6, 20)).data.removesuffix(b"\r\n"), (6, 20))
    assert texts(screen) == [f"row {row} {'=' * 13}" for row in range(15, 21)]
    found.append((SECOND, "o", "\x1b[1;80H"))
    screen = screen_of(played(found, (6, 20)).data.removesuffix(b"\r\n"), (6, 20))
    assert texts(screen)[0] == "=" * 16


def test_what_stood_on_the_terminal_can_be_scrolled_back_to_and_the_cursor_comes_back() -> None:
    watched = played([(0, "o", "\x1b[?25l\x1b[Hshown\x1b[3;1Hlow")], (10, 40))
    screen = screen_of(watched.data + b"$ ", (10, 40))
    assert [line.text.rstrip() for line in screen.lines()][:10] == [f"before {number}" for number in range(10)]
    assert texts(screen)[:5] == ["shown", "", "low", "$", ""]
    assert screen.cursor.visible
    assert b"?1049" not in watched.data


def test_only_rows_that_changed_are_painted_and_no_more_often_than_is_seen() -> None:
    found: Events = [(0, "o", "\x1b[2J" + "".join(f"\x1b[{row};1H{'x' * 60}" for row in range(1, 25)))]
    found += [(SECOND + number * 100, "o", f"\x1b[5;1H{number}") for number in range(1000)]
    watched = played(found, (24, 80))
    frames = [data for _, data in watched.written]
    assert len(frames) <= 0.1 / FRAME_S + 4
    assert all(len(frame) < 200 for frame in frames[1:])
    assert texts(screen_of(watched.data.removesuffix(b"\r\n"), (24, 80)))[4].startswith("999x")


def test_a_terminal_that_changes_its_size_is_painted_anew() -> None:
    sizes = iter([(24, 80), (24, 80), (10, 30), (10, 30)])
    watched = Watched()
    play(
        Header(24, 80),
        [(0, "o", "\x1b[2;2Hhere"), (SECOND, "o", "!")],
        watched.write,
        sleep=watched.sleep,
        clock=watched.clock,
        size=lambda: next(sizes),
    )
    assert texts(screen_of(watched.written[1][1], (10, 30)))[:2] == ["", " here!"]


def test_a_panic_of_the_emulator_is_a_blank_screen_and_no_end(monkeypatch: pytest.MonkeyPatch) -> None:
    feed = Grid.feed

    def fails(self: Grid, data: bytes) -> None:
        if b"boom" in data:
            raise GridFailed("as a panic would")
        feed(self, data)

    monkeypatch.setattr(Grid, "feed", fails)
    watched = played([(0, "o", "old"), (SECOND, "o", "boom"), (2 * SECOND, "o", "new")], (24, 80))
    assert texts(screen_of(watched.data, (24, 80)))[0] == "new"


def test_who_interrupts_gets_the_cursor_back() -> None:
    watched = Watched()

    def interrupted(seconds: float) -> None:
        raise KeyboardInterrupt

    with contextlib.suppress(KeyboardInterrupt):
        play(
            Header(24, 80),
            [(0, "o", "\x1b[?25lhidden"), (SECOND, "o", "never")],
            watched.write,
            sleep=interrupted,
            clock=watched.clock,
            size=lambda: (24, 80),
        )
    assert watched.data.endswith(b"\x1b[?25h\r\n")
    assert b"never" not in watched.data


CAST = [
    '{"version": 3, "term": {"cols": 60, "rows": 20}}',
    '[0, "o", "hello from the recording\\r\\n"]',
    '[0.001, "r", "40x10"]',
    '[0.001, "o", "\\u001b[10;1Hbottom \\u001b[6n"]',
]

_PLAY = """
import sys
from holdfast.cli import parser_of
parser, module = parser_of("play")
sys.exit(module.main(parser.parse_args(sys.argv[1:])))
"""


@pytest.mark.covers("terminal:46")
def test_a_file_is_played_on_a_real_terminal_that_is_never_asked(tmp_path: Path) -> None:
    (tmp_path / "a.cast").write_text("\n".join(CAST))
    with on_stage(sys.executable, "-c", _PLAY, str(tmp_path / "a.cast")) as stage:
        stage.read_until(b"\x1b[?25h\r\r\n")
        assert b"\x1b[6n" not in stage.printed
        rows = [line.text.rstrip() for line in stage._screen.view()]
    assert rows[0] == "hello from the recording"
    assert rows[9] == "bottom"


def run(*words: str) -> int:
    parser, module = parser_of(words[0])
    code: int = module.main(parser.parse_intermixed_args(words[1:]))
    return code


def test_files_of_other_kinds_and_parts_of_files_are_refused(tmp_path: Path, world: World) -> None:
    (tmp_path / "b.cast").write_text("no recording\n")
    with pytest.raises(errors.BadArgument, match=r"b\.cast: line 1 is no JSON"):
        run("play", str(tmp_path / "b.cast"))
    with pytest.raises(errors.BadArgument, match="--speed"):
        run("play", "x", "--speed", "0")
    (tmp_path / "a.cast").write_text("\n".join(CAST))
    with pytest.raises(errors.BadArgument, match="--from"):
        run("play", str(tmp_path / "a.cast"), "--from", "1s")
    with pytest.raises(errors.NotFound):
        run("play", "nosuchid")


def test_a_session_is_exported_and_played_by_the_command_line(
    world: World, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    done = world.open().run("printf 'one\\r\\n'; printf '\\377two\\r\\n'; exit 4", tty=True, size=(12, 50), wait=20)
    target = tmp_path / "out.cast"
    assert run("export", done.id, str(target), "--json") == 0
    said = capfd.readouterr()
    assert json.loads(said.out) == {"format": "asciicast3", "from": 0, "to": 13, "invalid": 1, "gaps": []}
    assert "no UTF-8 in 1 places" in said.err
    assert json.loads(target.read_text().splitlines()[0])["term"] == {"cols": 50, "rows": 12, "type": "xterm-256color"}
    assert run("export", done.id, str(tmp_path / "out.txt")) == 0
    assert (tmp_path / "out.txt").read_text() == "one\n\ufffdtwo\n"
    assert run("export", done.id, str(tmp_path / "out.raw")) == 0
    assert (tmp_path / "out.raw").read_bytes() == b"one\r\r\n\xfftwo\r\r\n"
    capfd.readouterr()
    assert run("export", done.id, "-", "--format", "asciicast2") == 0
    assert json.loads(capfd.readouterr().out.splitlines()[0])["version"] == 2
    for what in (str(target), done.id):
        assert run("play", what, "--speed", "1000") == 0
        assert capfd.readouterr().out == "one\r\r\n\ufffdtwo\r\r\n"
    assert sorted(each.name for each in tmp_path.iterdir() if each.suffix == ".part") == []


def test_an_export_that_fails_leaves_no_file(tmp_path: Path, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    done = world.open().run("echo x", tty=True, wait=20)
    with pytest.raises(OSError):
        run("export", done.id, str(tmp_path / "no" / "such" / "directory.cast"))
    with pytest.raises(errors.BadArgument):
        run("export", done.id, str(tmp_path / "a.cast"), "--from", "999")
    pipes = world.open().run("echo x", wait=20)
    with pytest.raises(errors.NotATty):
        run("export", pipes.id, str(tmp_path / "a.cast"))
    assert list(tmp_path.glob("a.cast*")) == []


def test_the_files_of_a_session_without_a_runner_are_enough(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from holdfast.host.recorded import Recording

    files = TerminalFiles(tmp_path / "p00000001", monkeypatch)
    files.prints(b"x", after=1)
    files.close()
    recording = Recording(files.files)
    watched = Watched()
    play(recording.header(), recording.events(), watched.write, sleep=watched.sleep, clock=watched.clock)
    assert watched.written == [(1, b"x")]
