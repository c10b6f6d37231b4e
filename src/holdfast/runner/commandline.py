"""A command as one line that a shell would read as the same words. No imports: everybody needs this."""

from __future__ import annotations

# A command longer than this is cut where it is shown; the spec has all of it.
CHARACTERS = 512
_HARMLESS = dict.fromkeys(map(ord, "_@%+=:,./-"))


def command_text(command: object) -> str:
    if isinstance(command, list):
        command = " ".join(_quoted(str(word)) for word in command)
    return str(command or "")[:CHARACTERS]


def _quoted(word: str) -> str:
    if word.isascii() and word.translate(_HARMLESS).isalnum():
        return word
    return "'" + word.replace("'", "'\"'\"'") + "'"
