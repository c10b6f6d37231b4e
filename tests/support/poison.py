"""Forged states of a terminal, with escape sequences in every text, and what may be shown of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from holdfast.core.vt.parser import CSI, DCS, INVALID, OSC, STRING, Scanner, split_csi, split_string

if TYPE_CHECKING:
    from collections.abc import Callable

# Ends whatever string it stands in; then a clipboard, a title, a question and a window operation, with 7 and 8 bits.
PAYLOAD = "x\x1b\\\x07\x1b]52;c;aGFja2Vk\x07\x1b]2;OWNED\x07\x1b[6n\x1b[8;10;10t\x9d52;c;aGFja2Vk\x9c\x9b6n"

# Executed where the state is made, too: it knows nothing but its arguments.
SOURCE = """
def texts(state, payload):
    labels = state["labels"]
    labels.update(title=payload, icon=payload, cwd=payload, pointer=payload, link=[payload, payload])
    labels["title_stack"] = [[payload, payload]] * 3

def pens(state, payload):
    state["pen"] = {"fg": "31m" + payload}

def charsets(state, payload):
    state["charsets"] = ["B" + payload] * 4

def colors(state, payload):
    state["colors"]["foreground"] = "red" + payload
    state["colors"]["palette"] = {"1": payload}

def modes(state, payload):
    state["modes"]["unknown"] = {"?4" + payload: True}

def keys(state, payload):
    state["keys"]["kitty"] = [[0, "1u" + payload], [0]]

def shapes(state, payload):
    state["shape"] = "2 q" + payload

def saved(state, payload):
    cursor = {"row": 0, "col": 0, "pending_wrap": False, "origin": False, "pen": {"fg": "31m" + payload}}
    state["saved"] = [{**cursor, "protected": 0, "charsets": ["B"] * 4, "shift": 0}, None]
"""
_found: dict[str, Any] = {}
exec(SOURCE, _found)
POISONS: dict[str, Callable[[dict[str, Any], str], None]] = {
    name: poison for name, poison in _found.items() if name != "__builtins__"
}


def harm(written: bytes) -> list[str]:
    """What of that would do more to a terminal than show a text. Its own title is kept and given back."""
    found = [
        f"a stray {each!r}" for each in written.decode("utf-8", "surrogateescape") if 0xDC80 <= ord(each) <= 0xDC9F
    ]
    for kind, _, raw in Scanner().steps(written + b"\x18"):
        if kind == OSC:
            payload = split_string(raw)[0]
            number = payload.partition(b";")[0]
            if number in (b"52", b"9", b"99", b"777") or payload in (b"2;OWNED", b"0;OWNED", b"1;OWNED"):
                found.append(f"an OSC {payload[:40]!r}")
            if payload[-1:] == b"?" or any(byte < 0x20 for byte in payload):
                found.append(f"a question or a control in {payload[:40]!r}")
        elif kind == CSI:
            prefix, body, intermediates, final = split_csi(raw)
            if final in b"nc" and prefix != b">":
                found.append(f"a question {raw!r}")
            if final == b"t" and (prefix, body, intermediates) not in ((b"", b"22;0", b""), (b"", b"23;0", b"")):
                found.append(f"a window operation {raw!r}")
        elif kind in (DCS, STRING) or (kind == INVALID and raw != b"\x18"):
            found.append(f"{raw[:40]!r}")
    return found
