"""The blocking half of the library is written from its asyncio half."""

from __future__ import annotations

from pathlib import Path

import pytest

import blocking


def test_the_blocking_modules_are_current(capsys: pytest.CaptureFixture[str]) -> None:
    assert blocking.main(["--check"]) == 0, capsys.readouterr().err


def test_what_is_awaited_is_driven_and_own_methods_are_called(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "aio.py").write_text(
        '"""For asyncio."""\n\n\n'
        "class AsyncDoor:\n"
        "    async def open(self, name: str) -> str:\n"
        '        """Open it, for asyncio."""\n'
        "        return (await find(name)).text\n\n"
        "    async def names(self) -> list[str]:\n"
        "        async with self.lock:\n"
        "            return [await self.open(name), await self.shut]\n\n"
        "    async def each(self):\n"
        "        async for name in listed():\n"
        "            yield name\n"
    )
    monkeypatch.setattr(blocking, "SOURCE", tmp_path)
    assert blocking.blocking(blocking.Pair("aio.py", "api.py", "For programs that block.")) == (
        '"""For programs that block.\n\nWritten by tools/blocking.py from aio.py: edit that one.\n"""\n\n\n'
        "class Door:\n"
        "    def open(self, name: str) -> str:\n"
        '        """Open it, for programs that block."""\n'
        "        return drive(find(name)).text\n\n"
        "    def names(self) -> list[str]:\n"
        "        with self.lock:\n"
        "            return [self.open(name), drive(self.shut)]\n\n"
        "    def each(self):\n"
        "        yield from drive_each(listed())\n"
    )
