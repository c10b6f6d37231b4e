"""Where in the file something stands, and the refusal of what nobody knows: for messages alone."""

from __future__ import annotations

from ..errors import ConfigError


def unknown(file: str, line: int | None, name: str, what: str, known: list[str] | tuple[str, ...]) -> ConfigError:
    from difflib import get_close_matches

    word = name if what == "variable" else name.rpartition(".")[2]
    near = get_close_matches(word[:80], known, 1)
    fix = f"did you mean {near[0]}?" if near else "known are " + ", ".join(known)
    return ConfigError(file, line, ascii(name)[1:-1][:120], f"unknown {what}", fix)


def line_of(text: str, section: str, key: str | None = None) -> int | None:
    """The line of `key` in `section` (or of the section), for messages; None if written unusually."""
    wanted = section if key is None else f"{section}.{key}"
    table = ""
    for number, line in enumerate(text.split("\n"), 1):
        line = line.strip()
        if line.startswith("["):
            name = table = _bare(line.strip("[] \t").partition("]")[0])
        else:
            name = _bare(line.partition("=")[0])
            name = f"{table}.{name}" if table else name
            if name == section:
                # An inline table: the key is on the same line.
                return number
        if name == wanted or name.startswith(wanted + "."):
            return number
    return None


def nearest_line(text: str, *path: str) -> int | None:
    """The line of the table or key at `path`, else of the innermost table around it that can be found."""
    for end in range(len(path), 0, -1):
        line = line_of(text, ".".join(path[: end - 1]), path[end - 1]) if end > 1 else line_of(text, path[0])
        if line is not None:
            return line
    return None


def line_in(message: str, text: str) -> int | None:
    """The line that the TOML parser names; `at end of document` is the last."""
    digits = message.partition("at line ")[2].partition(",")[0]
    if digits.isdecimal():
        return int(digits)
    return text.count("\n") + 1 if "end of document" in message else None


def unquoted(text: str, line: int | None) -> str | None:
    """The fix for a line such as `grace = 5s`; None for any other."""
    written = "" if line is None else text.split("\n")[line - 1]
    key, _, value = written.partition("#")[0].partition("=")
    value = value.strip()
    if not value or not value.isascii() or not value.replace(".", "").replace("-", "").replace("/", "").isalnum():
        return None
    return f'write {key.strip()[:80]} = "{value[:80]}": text, sizes and durations need quotes'


def _bare(name: str) -> str:
    return ".".join(part.strip().strip("\"'") for part in name.split("."))
