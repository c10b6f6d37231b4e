"""STR-03 and STR-04: awkward bytes, awkward cuts, bursts before an end. The log is what was written."""

from __future__ import annotations

import hashlib
import os
import sys
import tracemalloc

import pytest

from holdfast import Holdfast, Session
from holdfast.sessions.log import READ_MAX_BYTES
from support import numbered_stream
from support.bystander import Bystanders
from support.promised import Beside, promised
from support.scale import scaled
from support.world import World

MIB = 1 << 20
AWKWARD = (
    bytes(range(256))
    + b"\xff\xfe\x80\xbf\xc0\xaf\xf5\xed\xa0\x80\n"
    + "ü€😀 e\u0301 \u202e\n".encode()
    + b"\0\0nul\0\n"
    + b"\r\r\r\r50%\r100%\r\n"
    + b"\x1b[31mred\x1b[0m\x1b]0;title\x07\x1b[1;1Hhome\x1bP+q544e\x1b\\\n"
    + b"no end of line"
)


def printed_in(hf: Holdfast, payload: bytes, sizes: list[int]) -> Session:
    """A session that writes these bytes in pieces of these sizes, each read by the runner before the next comes."""
    session = hf.start(["cat"], stdin="open", merge_stderr=True)
    at = place = 0
    while at < len(payload):
        part = payload[at : at + sizes[place % len(sizes)]]
        session.send(part)
        at, place = at + len(part), place + 1
        assert session.wait(output=True, since=f"stdout:{at - 1}", timeout=30).reason == "output"
    session.close_stdin()
    assert session.wait(exit=True, timeout=30).reason == "exit"
    return session


@pytest.mark.covers("STR-03")
def test_str_03_awkward_bytes_are_stored_as_written_and_shown_the_same_for_every_chunk_size(
    world: World, bystander: Bystanders, beside: Beside
) -> None:
    hf = world.open()
    whole = printed_in(hf, AWKWARD, [len(AWKWARD)])
    clean = whole.text()
    assert "\x1b" not in clean
    assert "red" in clean
    assert "100%" in clean
    for sizes in ([7], [1, 2, 3, 5, 8], [64]):
        session = printed_in(hf, AWKWARD, sizes)
        assert b"".join(session.raw("stdout")) == AWKWARD
        assert session.text() == clean
        assert session.tail(3) == whole.tail(3)
        assert [hit.text for hit in session.search("e")] == [hit.text for hit in whole.search("e")]
        promised(world, session, bystander=bystander, beside=beside)


@pytest.mark.covers("STR-03")
def test_str_03_pages_of_every_size_hold_the_same_bytes(world: World, bystander: Bystanders, beside: Beside) -> None:
    done = world.open().run(world.probe("quiet", "hex", AWKWARD.hex(), "err", "hex", AWKWARD[::-1].hex()))
    for limit in [*range(1, 70), 128, len(AWKWARD) - 1, len(AWKWARD), len(AWKWARD) * 3]:
        for name, wanted in (("stdout", AWKWARD), ("stderr", AWKWARD[::-1])):
            cursor, got, pages = "0", b"", 0
            while True:
                page = done.read(cursor, stream=name, limit=limit)
                assert len(page.data) <= limit
                got += page.data
                pages += 1
                if not page.more:
                    break
                assert page.cursor != cursor, "no progress"
                cursor = page.cursor
            assert got == wanted
            assert pages <= len(wanted) + 1
    promised(world, done, bystander=bystander, beside=beside)


@pytest.mark.covers("STR-03")
@pytest.mark.slow
@pytest.mark.parametrize("size", [MIB, scaled(16, 64) * MIB])
def test_str_03_a_line_without_end_is_stored_whole_and_every_reader_stays_bounded(
    world: World, bystander: Bystanders, beside: Beside, size: int
) -> None:
    done = world.open().run(world.probe("quiet", "fill", size, "say", " needle", "say", "last"), log_cap=80 * MIB)
    assert done.ends["stdout"] == size + len(" needle\nlast\n")
    wanted = hashlib.sha256(b"x" * size + b" needle\nlast\n").digest()
    got = hashlib.sha256()
    tracemalloc.start()
    try:
        for part in done.raw("stdout"):
            got.update(part)
        assert got.digest() == wanted
        assert len(done.read().data) <= READ_MAX_BYTES
        assert done.tail(1) == "last\n"
        assert [hit.text[-6:] for hit in done.search("needle|last")][-1:] == ["last"]
        followed = sum(len(page.data) for page in done.follow())
        assert followed == done.ends["stdout"]
        assert tracemalloc.get_traced_memory()[1] < 40 * MIB
    finally:
        tracemalloc.stop()
    promised(world, done, bystander=bystander, beside=beside)


BURST = """
import os, sys
sys.path.insert(0, sys.argv[1])
from support import numbered_stream
size = int(sys.argv[2])
for number in range(size >> 20):
    view = memoryview(numbered_stream.block(number))
    while view:
        view = view[os.write(1, view):]
os.write(2, b"last words\\n")
os._exit(9)
"""


@pytest.mark.covers("STR-04")
@pytest.mark.slow
def test_str_04_a_hundred_megabytes_right_before_the_end_are_all_there_and_the_exit_comes_last(
    world: World, bystander: Bystanders, beside: Beside
) -> None:
    size = scaled(24, 100) * MIB
    script = world.root / "burst.py"
    script.write_text(BURST)
    tests = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    session = world.open().start([sys.executable, "-I", "-S", str(script), tests, str(size)], log_cap=128 * MIB)
    got: dict[str, int] = {"stdout": 0, "stderr": 0}
    digest = hashlib.sha256()
    for page in session.follow():
        assert page.gaps == []
        for name, offset, data in page.chunks:
            assert offset == got[name]
            got[name] += len(data)
            if name == "stdout":
                digest.update(data)
            else:
                assert data in b"last words\n"
    # The follower was told of the end after the last byte of both streams.
    assert got == {"stdout": size, "stderr": len("last words\n")}
    wanted = hashlib.sha256()
    for number in range(size >> 20):
        wanted.update(numbered_stream.block(number))
    assert digest.digest() == wanted.digest()
    done = promised(world, session, bystander=bystander, beside=beside)
    assert done.exit is not None
    assert (done.exit.code, done.exit.complete) == (9, True)
    assert done.ends == got


@pytest.mark.covers("STR-04")
def test_str_04_last_words_on_either_stream_are_never_lost_to_the_exit(
    world: World, bystander: Bystanders, beside: Beside
) -> None:
    hf = world.open()
    for number in range(20):
        size = 70_000 * (number % 4)
        words = [
            "quiet",
            "fill",
            size,
            "say",
            "",
            "err",
            "fill",
            size,
            "say",
            "",
            "say",
            "err last",
            "out",
            "say",
            "out last",
        ]
        session = hf.start(world.probe(*words, "exit", 4))
        assert session.wait(exit=True, timeout=30).reason == "exit"
        done = session.refresh()
        assert done.exit is not None
        assert (done.exit.code, done.exit.complete) == (4, True)
        assert done.ends == {"stdout": size + 1 + 9, "stderr": size + 1 + 9}
        assert b"".join(done.raw("stdout")).endswith(b"\nout last\n")
        assert b"".join(done.raw("stderr")).endswith(b"\nerr last\n")
    promised(world, session, bystander=bystander, beside=beside)
