from __future__ import annotations

import pytest

from holdfast.terminal.text import AgentText, Decoder

PRINTED = "é \x1b[31mred\x1b[0m \U0001f600\t\x1b]0;title\x07x\x08y\r\n".encode() + b"\xc2\x9b1mz\x00"
SHOWN = "é red \U0001f600\tx\\x08y\r\nz\\x00"


def read(pieces: list[bytes]) -> str:
    text = AgentText()
    return "".join(map(text.feed, pieces)) + text.flush()


def test_sequences_go_and_other_controls_are_spelled() -> None:
    assert read([PRINTED]) == SHOWN


@pytest.mark.parametrize("cut", range(len(PRINTED) + 1))
def test_the_text_does_not_depend_on_where_the_bytes_were_cut(cut: int) -> None:
    assert read([PRINTED[:cut], PRINTED[cut:]]) == SHOWN


@pytest.mark.parametrize("cut", range(len(PRINTED) + 1))
def test_another_reader_continues_from_the_ground_of_the_first(cut: int) -> None:
    first = AgentText()
    shown = first.feed(PRINTED[:cut])
    second = AgentText(first.ground)
    assert shown + second.feed(PRINTED[first.ground :]) + second.flush() == SHOWN


def test_direction_and_tags_are_spelled_and_joiners_stay() -> None:
    assert read(["a\u202eb\U000e0041c\u200dd".encode()]) == "a\\u{202e}b\\u{e0041}c\u200dd"


def test_an_unfinished_character_becomes_a_replacement_character() -> None:
    assert read([b"a\xf0\x9f"]) == "a\ufffd"
    assert read([b"a\x1b[3"]) == "a"


@pytest.mark.parametrize("cut", range(6))
def test_a_decoder_keeps_sequences_and_gives_whole_characters(cut: int) -> None:
    data = "\x1b\U0001f600x".encode()
    decoder = Decoder()
    assert decoder.feed(data[:cut]) + decoder.feed(data[cut:]) + decoder.flush() == "\x1b\U0001f600x"
