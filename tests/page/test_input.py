"""What is typed, composed and pasted in the page, as a program in raw mode gets it."""

from __future__ import annotations

import os
import re
import string
import sys
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest

from holdfast.errors import BadKey
from support.browser import until
from support.scale import scaled
from support.waiting import TooLate
from support.waiting import until as wait_until

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from holdfast import Session
    from support.browser import Chromium, Tab
    from support.world import World

    Start = Callable[..., Session]

# Writes down what it reads, and prints what comes through a FIFO.
_RECORDER = """
import os, select, sys, tty
tty.setraw(0)
told = os.open(sys.argv[1], os.O_RDWR)
os.write(1, b"ready")
with open(sys.argv[2], "ab", buffering=0) as file:
    while True:
        for fd in select.select([0, told], [], [])[0]:
            file.write(os.read(0, 65536)) if fd == 0 else os.write(1, os.read(told, 4096))
"""
_MARK = b"<mark>"


class Recorder:
    """A session that records its input, and a tab that is attached to it."""

    def __init__(self, chromium: Chromium, world: World, start: Start) -> None:
        self.path: Path = world.root / "received"
        self.path.touch()
        self._told = world.root / "told"
        os.mkfifo(self._told)
        argv = [sys.executable, "-c", _RECORDER, str(self._told), str(self.path)]
        self.session = start(argv, tty=True, size=(24, 80))
        self.tab: Tab = chromium.signed_in(permissions=["clipboard-read", "clipboard-write"])
        self._sent = self.tab.sent()
        self.tab.attach(self.session)
        self.tab.page.click(".terminal")
        self.tab.terminal_shows("ready")

    def set_modes(self, sequences: str) -> None:
        """Nothing but these; the page knows of them, too."""
        self._told.write_text(f"\x1bc{sequences}set {sequences.encode().hex()}.")
        self.tab.terminal_shows(f"set {sequences.encode().hex()}.")
        flags = re.findall(r">(\d+)u", sequences)
        self.tab.page.wait_for_function(
            "(wanted) => document.querySelector('.terminal').attachment.modes.kittyKeyboard === wanted",
            arg=int(flags[0]) if flags else 0,
        )
        self.taken()
        self._sent.clear()

    def taken(self) -> bytes:
        """What the program has read since the last time, when it has read all that was typed in the page."""
        self.tab.until_taken()
        self.session.send(_MARK.decode())
        until(lambda: self.path.read_bytes().endswith(_MARK))
        received = self.path.read_bytes().removesuffix(_MARK)
        self.path.write_bytes(b"")
        return received

    def taken_later(self) -> bytes:
        """As `taken`, once the program has read something more; nothing after a while."""
        with suppress(TooLate):
            wait_until(lambda: self.tab.page.evaluate("1") and self.path.stat().st_size, 10)
        return self.taken()

    def inputs(self) -> list[dict[str, object]]:
        """The messages with input that the page sent since the modes were set."""
        return [each for each in self._sent if each["type"] == "input"]


# Keys by the name of their event, with their name in a token and their number; those of the keypad by their code.
_NAMED = (
    "Enter=Enter=13 Tab=Tab=9 Escape=Escape=27 Backspace=Backspace=8 ArrowUp=Up=38 ArrowDown=Down=40 "
    "ArrowLeft=Left=37 ArrowRight=Right=39 Home=Home=36 End=End=35 Insert=Insert=45 Delete=Delete=46 "
    "PageUp=PageUp=33 PageDown=PageDown=34 " + " ".join(f"F{n}=F{n}={111 + n}" for n in range(1, 25))
)
_KEYPAD = (
    "Add + 107, Subtract - 109, Multiply * 106, Divide / 111, Decimal . 110, Equal = 187, Enter Enter 13, "
    + ", ".join(f"{n} {n} {96 + n}" for n in range(10))
)
_MODIFIED = [f"{ctrl}{alt}{shift}" for ctrl in ("", "C-") for alt in ("", "M-") for shift in ("", "S-")]

Press = tuple[str, tuple[str, str], dict[str, object]]


def _presses() -> list[Press]:
    """Each key as its token, the key and modifiers that are pressed, and the rest of the event."""
    found: list[Press] = []
    for key, name, number in (each.split("=") for each in _NAMED.split()):
        modified = _MODIFIED if key not in _SHIFTED else [each for each in _MODIFIED if "S-" not in each]
        for modifiers in modified:
            text = "\r" if key == "Enter" and not modifiers else ""
            found.append((modifiers + name, (key, modifiers), {"code": key, "number": int(number), "text": text}))
    for code, key, number in (each.split() for each in _KEYPAD.split(", ")):
        name = "KPEnter" if key == "Enter" else f"KP{key}"
        text = "\r" if key == "Enter" else key
        found.append((name, (key, ""), {"code": f"Numpad{code}", "number": int(number), "text": text}))
    for letter in string.ascii_lowercase:
        rest = {"code": f"Key{letter.upper()}", "number": ord(letter.upper())}
        found.append((letter, (letter, ""), {**rest, "text": letter}))
        found.append((letter.upper(), (letter.upper(), "S-"), {**rest, "text": letter.upper()}))
        found += [(f"{each}{letter}", (letter, each), rest) for each in ("C-", "M-", "C-M-")]
        found.append((f"M-{letter.upper()}", (letter.upper(), "M-S-"), rest))
        if letter not in "cv":  # with these the browser copies and pastes
            found.append((f"C-S-{letter}", (letter.upper(), "C-S-"), rest))
    for character in "@[\\]^_?/2345678019":
        shift = "S-" if character in "@^_?" else ""
        found.append((f"C-{character}", (character, f"C-{shift}"), {}))
    for modifiers in _MODIFIED:
        # Without Ctrl and Alt it is text.
        if modifiers not in ("", "S-"):
            found.append((f"{modifiers}Space", (" ", modifiers), {"code": "Space", "number": 32}))
    found += [(each, (each, ""), {"text": each}) for each in " ~é漢"]
    return found


_SHIFTED = {f"F{n}" for n in range(13, 25)}
_MODES = (
    *("", "\x1b[?1h", "\x1b=", "\x1b[?1h\x1b=", "\x1b[?67h", "\x1b[>4;2m"),
    *("\x1b[>1u", "\x1b[?1h\x1b=\x1b[>1u", "\x1b[>9u", "\x1b[>25u"),
)
_REPORTS = ("\x1b[?1000h\x1b[?1004h", "\x1b[?1000h\x1b[?1004h\x1b[?1006h")


@pytest.mark.covers("page:11")
def test_each_key_arrives_as_hold_keys_sends_it(chromium: Chromium, world: World, start: Start) -> None:
    recorder = Recorder(chromium, world, start)
    page = recorder.tab.page
    presses, few = _presses(), scaled(6, 1)
    for number, modes in enumerate(_MODES):
        recorder.set_modes(modes)
        # In the short form a sixth of them in each mode, and others in the next.
        pressed = presses[number % few :: few]
        for token, _, _ in pressed:
            with suppress(BadKey):
                recorder.session.keys(token)
        wanted = recorder.taken()
        for token, (key, modifiers), rest in pressed:
            for _ in range(1 + (token == "C-]")):
                recorder.tab.press(key, modifiers, **rest)  # type: ignore[arg-type]
        assert recorder.taken() == wanted, modes
    for modes in _REPORTS:
        recorder.set_modes(modes)
        recorder.session.keys("Click@3,7", "WheelUp@3,7", "WheelDown@3,7", "FocusOut", "FocusIn")
        wanted = recorder.taken()
        box = page.locator(".xterm-screen").bounding_box()
        rows, cols = recorder.session.refresh().size or (0, 0)
        assert box is not None
        page.mouse.click(box["x"] + box["width"] / cols * 6.5, box["y"] + box["height"] / rows * 2.5)
        page.mouse.wheel(0, -100)
        page.mouse.wheel(0, 100)
        until(lambda: page.evaluate("1") and len(recorder.inputs()) == 4)
        page.evaluate("document.activeElement.blur()")
        page.evaluate("document.querySelector('.xterm-helper-textarea').focus()")
        # Reports of the focus are sent when the browser has told the page.
        got = recorder.taken()
        while len(got) < len(wanted) and (more := recorder.taken_later()):
            got += more
        assert got == wanted
    assert recorder.tab.problems == []


@pytest.mark.covers("page:12")
def test_what_is_composed_arrives_once_and_whole(chromium: Chromium, world: World, start: Start) -> None:
    recorder = Recorder(chromium, world, start)
    recorder.set_modes("")
    keyboard = recorder.tab.devtools

    def compose(*steps: str) -> None:
        for step in steps[:-1]:
            recorder.tab.press("Process", number=229)
            place = {"selectionStart": len(step), "selectionEnd": len(step)}
            keyboard.send("Input.imeSetComposition", {"text": step, **place})
        keyboard.send("Input.insertText", {"text": steps[-1]})

    composed = {
        "Japanese": ("n", "に", "にh", "にほn", "日本", "日本"),
        "Korean": ("ㅎ", "하", "한", "한"),
        "a candidate with another length": ("zhongguo", "中国"),
        "nothing in the end": ("x", ""),
    }
    for steps in composed.values():
        compose(*steps)
    recorder.tab.press("Dead", code="BracketLeft", number=229)
    compose("\u00b4", "é")
    # An emoji picker composes nothing; the family is seven code points.
    keyboard.send("Input.insertText", {"text": "👩‍👩‍👧‍👦"})
    wanted = ["日本", "한", "中国", "é", "👩‍👩‍👧‍👦"]
    assert recorder.taken().decode() == "".join(wanted)
    assert [each.get("data") for each in recorder.inputs()] == wanted

    syllables = [chr(0x304B + number % 40) for number in range(scaled(200, 10_000))]
    for number, syllable in enumerate(syllables):
        if number % 4 == 3:  # a digit, for which the input method opens nothing
            recorder.tab.press("Process", number=229)
            keyboard.send("Input.insertText", {"text": str(number % 10)})
            syllables[number] = str(number % 10)
        else:
            compose("k", syllable, syllable)
    assert recorder.taken().decode() == "".join(syllables)
    assert recorder.tab.problems == []


@pytest.mark.covers("page:13")
def test_a_large_paste_arrives_as_one_and_submits_nothing(chromium: Chromium, world: World, start: Start) -> None:
    recorder = Recorder(chromium, world, start)
    line = "echo \x1b[201~ \x1b[31m 漢字 \x9b201~ 😀\r\ntouch submitted\n\x03\x04"
    text = (line * (1 + (1 << 20) // len(line.encode())))[:-3]
    clean = re.sub(
        r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]", "", text.replace("\r\n", "\r").replace("\n", "\r")
    ).encode()
    assert len(text.encode()) >= 1 << 20
    recorder.tab.page.evaluate("(text) => navigator.clipboard.writeText(text)", text)
    for modes, begin, end in (("\x1b[?2004h", b"\x1b[200~", b"\x1b[201~"), ("", b"", b"")):
        recorder.set_modes(modes)
        recorder.tab.page.keyboard.press("Control+Shift+V")
        until(lambda: recorder.tab.page.evaluate("1") and recorder.inputs())
        assert recorder.taken() == begin + clean + end
        assert all("paste" in each for each in recorder.inputs())

    # A shell that takes a paste in brackets shows it and runs none of it.
    shell = start(["bash", "--norc", "-i"], tty=True, size=(24, 80), env={"PS1": "prompt> "})
    recorder.tab.attach(shell)
    recorder.tab.page.click(".terminal")
    recorder.tab.terminal_shows("prompt>")
    recorder.tab.page.evaluate("(text) => navigator.clipboard.writeText(text)", line)
    recorder.tab.page.keyboard.press("Control+Shift+V")
    recorder.tab.terminal_shows("touch submitted")
    recorder.tab.until_taken()
    # Ctrl-C drops what the shell has not read yet, the end of the paste too.
    assert shell.wait(idle=1, timeout=60).reason == "idle"
    recorder.tab.page.keyboard.press("Control+c")
    recorder.tab.page.keyboard.type("echo later\n")
    assert shell.wait(match="^later", timeout=60).reason == "match"
    assert not (world.cwd / "submitted").exists()
    assert recorder.tab.problems == []
