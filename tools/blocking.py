"""Write the blocking modules from the asyncio modules; with `--check`, only compare.

The asyncio module is the one to edit. What it awaits of the public methods of its own classes becomes a plain call;
every other coroutine is run to its end by `drive` of sessions/driver.py. Names lose their `Async`.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

SOURCE = Path(__file__).resolve().parent.parent / "src" / "holdfast"
RUFF = Path(sys.executable).with_name("ruff")


# In a module with both kinds of classes: what stands below is written from the asyncio classes above.
MARK = "# The blocking classes. tools/blocking.py writes them from those above: edit those.\n"


@dataclass(frozen=True)
class Pair:
    """`target` is written from `source`. Both can be the same module."""

    source: str
    target: str
    # The docstring of the target, where that is a module of its own.
    title: str = ""
    # Expressions whose methods are blocking in the target, beside `self`.
    facades: frozenset[str] = frozenset()
    # Functions, classes and methods that only asyncio needs.
    left_out: frozenset[str] = frozenset()
    replaced: dict[str, str] = field(default_factory=dict)


_CONSUMER = "from ..signals.consumer import Consumer\n\n        return Consumer"

PAIRS = (
    Pair(
        "sessions/aio.py",
        "sessions/api.py",
        "`Holdfast` and `Session`: the calls for programs that block.",
        facades=frozenset({"self._daemons"}),
        left_out=frozenset({"as_author", "coroutines", "over"}),
        replaced={
            "from .driver import Asynchronous\n": "from .driver import Blocking, drive, drive_each\n",
            "    from .api import Holdfast\n": "",
            "Asynchronous()": "Blocking()",
            "open_async(": "open(",
            "return self._core.consumers.of_owner(owner)": f"{_CONSUMER}(self._core.consumers.of_owner(owner))",
            "return consumers.open(": f"{_CONSUMER}(consumers.open(",
            "start=start, replace=replace)": "start=start, replace=replace))",
        },
    ),
    Pair("sessions/attach.py", "sessions/attach.py", left_out=frozenset({"AsyncAttachment.drain"})),
    Pair(
        "daemons/view.py",
        "daemons/view.py",
        left_out=frozenset({"AsyncDaemons._new_deliverer"}),
        replaced={"self._end_all(blocking=False)": "self._end_all(blocking=True)"},
    ),
    Pair("daemons/lsp.py", "daemons/lsp.py", left_out=frozenset({"AsyncLanguageServer._result"})),
    Pair(
        "tools/evva/state.py",
        "tools/evva/state.py",
        facades=frozenset({"self._hf", "self._hf.daemons"}),
        left_out=frozenset({"AsyncDaemonState._kill"}),
        replaced={
            "asyncio.Lock()": "threading.Lock()",
            "Awaitable[object]": "object",
            "drive(self.waker)": "self.waker.wait()",
            "Asynchronous()": "Blocking()",
            "hf._core.blocking()": "hf._core",
            # The calls of a blocking state all block.
            " Calls that are not awaited block while they ask the index or, for\n    `snapshot`, the runners.": "",
        },
    ),
    Pair(
        "signals/loop.py",
        "signals/loop.py",
        replaced={
            "drive(self._source.waker)": "self._source.waker.wait()",
            "self._turns.run(turn, limit)": "self._turns.run(_calling(turn), limit)",
            "_Drained(consumer,": "_Drained(consumer._async,",
            "Awaitable[object]": "object",
        },
    ),
)

_NAMES = {
    "__aenter__": "__enter__",
    "__aexit__": "__exit__",
    "__aiter__": "__iter__",
    "__anext__": "__next__",
    "for asyncio": "for programs that block",
    "`async with`": "`with`",
}


def blocking(pair: Pair) -> str:
    """The text of the blocking module."""
    text = (SOURCE / pair.source).read_text(encoding="utf-8").partition(MARK)[0]
    tree = ast.parse(text)
    lines = [0]
    for line in text.splitlines(keepends=True):
        lines.append(lines[-1] + len(line.encode()))
    raw = text.encode()

    def begin(node: ast.expr | ast.stmt) -> int:
        return lines[node.lineno - 1] + node.col_offset

    def end(node: ast.expr | ast.stmt) -> int:
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        return lines[node.end_lineno - 1] + node.end_col_offset

    edits: list[tuple[int, int, bytes]] = []  # from, to, what stands there instead
    if pair.source == pair.target:
        classes = [node for node in tree.body if isinstance(node, ast.ClassDef) and node.name.startswith("Async")]
        bounds = [0, *(bound for node in classes for bound in (begin(node), end(node))), len(raw)]
        edits += [(first, last, b"\n\n\n") for first, last in zip(bounds[::2], bounds[1::2], strict=True)]
    else:
        heading = f'"""{pair.title}\n\nWritten by tools/blocking.py from {Path(pair.source).name}: edit that one.\n"""'
        edits.append((begin(tree.body[0]), end(tree.body[0]), heading.encode()))
    named = [(getattr(node, "name", ""), node) for node in tree.body]
    named += [(f"{name}.{getattr(each, 'name', '')}", each) for name, node in named for each in _methods(node)]
    edits += [(begin(node), end(node), b"") for name, node in named if name in pair.left_out]
    dropped = [(first, last) for first, last, instead in edits if not instead.strip()]
    for node in ast.walk(tree):
        if not isinstance(node, ast.AsyncFunctionDef | ast.AsyncFor | ast.For | ast.AsyncWith | ast.Await):
            continue
        at = begin(node)
        if any(first <= at < last for first, last in dropped):
            continue
        if isinstance(node, ast.AsyncFor | ast.For):
            first, last = begin(node.iter), end(node.iter)
            driven = isinstance(node, ast.AsyncFor)
            if ast.unparse(ast.Module(node.body, [])) == f"yield {ast.unparse(node.target)}":
                edits += [(at, first, b"yield from drive_each(" if driven else b"yield from ")]
                edits += [(last, end(node), b")" if driven else b"")]
            elif driven:
                edits += [(at, at + len(b"async "), b""), (first, first, b"drive_each("), (last, last, b")")]
        elif not isinstance(node, ast.Await):
            edits.append((at, at + len(b"async "), b""))
        else:
            last = end(node)
            # `(await x).y` needs no parentheses any more.
            bare = raw[at - 1 : at] == b"(" and raw[last : last + 2] in (b").", b")[")
            called = not _is_blocking(node.value, pair.facades)
            edits.append((at - bare, at + len(b"await "), b"drive(" if called else b""))
            edits.append((last, last + bare, b")" if called else b""))
    for first, last, instead in sorted(edits, reverse=True):
        raw = raw[:first] + instead + raw[last:]
    made = raw.decode()
    for old, new in {**pair.replaced, **_NAMES}.items():
        made = made.replace(old, new)
    made = re.sub(r"\bAsync(?=[A-Z])", "", made)
    if pair.source == pair.target:
        made = f"{text}{MARK}\n\n{made.lstrip()}"
    for arguments in (["check", "--fix", "--quiet", "--select", "F401,I"], ["format", "--quiet"]):
        command = [str(RUFF), *arguments, "--stdin-filename", str(SOURCE / pair.target), "-"]
        made = subprocess.run(command, input=made, capture_output=True, text=True, check=True).stdout
    return made


def _methods(node: ast.stmt) -> list[ast.stmt]:
    return node.body if isinstance(node, ast.ClassDef) else []


def _is_blocking(awaited: ast.expr, facades: frozenset[str]) -> bool:
    """Is this a call of a method that the blocking module has as well?"""
    if not isinstance(awaited, ast.Call) or not isinstance(awaited.func, ast.Attribute):
        return False
    if awaited.func.attr.startswith("_"):
        return False
    return ast.unparse(awaited.func.value) in {"self", *facades}


def main(arguments: list[str]) -> int:
    stale = []
    for pair in PAIRS:
        target = SOURCE / pair.target
        made = blocking(pair)
        if arguments == ["--check"]:
            if target.read_text(encoding="utf-8") != made:
                stale.append(pair.target)
        else:
            target.write_text(made, encoding="utf-8")
    for path in stale:
        print(f"{path} is not current: run tools/blocking.py", file=sys.stderr)
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
