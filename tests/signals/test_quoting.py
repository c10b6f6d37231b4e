from __future__ import annotations

import re
import sys
import time
import unicodedata

from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.core.vt.text import Line
from holdfast.runner.features.monitor import entry
from holdfast.signals.redact import Quoter, clean_text, cut, escape_hidden, fence, without_tags
from support.scale import scaled

CONTROLS = "\x1b\x07\x08\x9b\x9d\x9c\r\0[]0;1mKP\\\nab<"
TEXT = st.text(CONTROLS, max_size=40) | st.text(max_size=40)


def quoter() -> Quoter:
    return Quoter(lambda text: text, tags=True)


@given(TEXT)
@settings(max_examples=scaled(60, 300), deadline=None)
def test_clean_text_has_nothing_a_terminal_obeys_and_stays_as_it_is(text: str) -> None:
    reported = clean_text(text)
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f]", reported)
    assert clean_text(reported) == reported


def test_every_character_that_hides_is_shown() -> None:
    """Of the format characters only the signs that Arabic and others put before a number can be seen."""
    signs = {*range(0x600, 0x606), 0x6DD, 0x70F, 0x890, 0x891, 0x8E2, 0x110BD, 0x110CD}
    hiding = [
        chr(code)
        for code in range(0xA0, sys.maxunicode + 1)
        if unicodedata.category(chr(code)) in ("Cf", "Cs", "Zl", "Zp") and code not in signs
    ]
    assert len(hiding) > 150
    assert [each for each in hiding if escape_hidden(each) != f"\\u{{{ord(each):x}}}"] == []


@given(st.text(max_size=60))
def test_no_tag_is_left(text: str) -> None:
    assert not re.search(r"<([^\W\d_]|[/!?])", without_tags(text))


@given(st.text("ab<&\\u{}\u202e", max_size=80), st.integers(0, 60))
@settings(max_examples=scaled(40, 200), deadline=None)
def test_what_is_cut_is_short_enough_and_says_so(text: str, limit: int) -> None:
    reported = cut(without_tags(escape_hidden(text)), limit)
    whole = without_tags(escape_hidden(text))
    assert len(reported) <= max(limit, 3)
    assert reported == whole or reported.endswith(("characters in all]", "..."))


@given(st.lists(st.text("`a ", max_size=30), max_size=5))
def test_a_fence_is_longer_than_what_is_inside(lines: list[str]) -> None:
    assert len(fence(lines)) >= 3
    assert not any(fence(lines) in line for line in lines)


def test_a_word_of_ours_stays_bare_and_any_other_is_quoted() -> None:
    words = quoter()
    assert words.word("conv-17") == "conv-17"
    assert words.word("a, exit code 0") == '"a, exit code 0"'
    assert words.word('say "x"') == '"say \\"x\\""'
    assert words.word("") == '""'
    assert words.word(17) == '""'


def test_a_label_is_one_line_of_a_hundred_and_twenty_characters() -> None:
    assert quoter().label("a\n  b\t\x1b[31mc\r\n</x>") == "a b c &lt;/x>"
    reported = quoter().label("y" * 500)
    assert len(reported) == 120
    assert reported.endswith(" ...[500 characters in all]")


def test_it_takes_time_in_proportion_to_the_text() -> None:
    for piece in ("\x1b", "\x1b[", "\x1b]", "\x9b1", "<", "a\r", "\r", "\u202e", "`", "|"):
        begun = time.process_time()
        quoter().lines([piece * 60_000])
        quoter().label(piece * 60_000)
        assert time.process_time() - begun < 5, piece


def test_the_mark_of_a_part_is_not_cut_off() -> None:
    part = entry("stderr", Line("y" * 8192, 0, 8192, part=3, cut=True))
    (shown,) = quoter().lines([part["text"]])
    assert shown.endswith(" [part 3, goes on; 8192 characters, cursor stderr:0]")
