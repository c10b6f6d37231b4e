"""The checker of the architecture, over small packages written for each rule."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import layers


def faults_of(root: Path, files: dict[str, str]) -> list[str]:
    files = {
        "__init__.py": "",
        "runner/__init__.py": "",
        "sessions/__init__.py": "",
        "cli/__init__.py": "",
        **files,
    }
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return [f"{fault.path.relative_to(root)}:{fault.line}: {fault.text}" for fault in layers.check_package(root)]


def sleeps_in(text: str) -> list[int]:
    return [fault.line for fault in layers.check_sleep(Path("test_x.py"), ast.parse(text))]


def test_imports_downwards_are_fine(tmp_path: Path) -> None:
    files = {
        "errors.py": "import json\n",
        "home.py": "from holdfast.errors import NotFound\nfrom . import errors\n",
        "sessions/core.py": "from holdfast import __version__, home\nfrom ..core import processes\n",
        "sessions/api.py": "from holdfast.sessions.core import Core\n",
        "core/processes.py": "import os\nfrom . import wire\n",
        "core/wire.py": "import struct\n",
        "cli/look.py": "import holdfast\nfrom . import table\n",
        "cli/table.py": "",
    }
    assert faults_of(tmp_path, files) == []


@pytest.mark.parametrize(
    "name, text",
    [
        ("errors.py", "import holdfast.sessions.core"),
        ("home.py", "def f():\n    from .sessions import core"),
        ("signals/queue.py", "from ..sessions import core"),
        ("sessions/core.py", "from holdfast.sessions.api import Holdfast"),
        ("sessions/core.py", "from . import api"),
        ("sessions/core.py", "if TYPE_CHECKING:\n    from .api import Holdfast"),
        ("sessions/core.py", "from holdfast import open"),
        ("__init__.py", "from .cli import main"),
    ],
)
def test_an_import_upwards_is_refused_however_it_is_spelled(tmp_path: Path, name: str, text: str) -> None:
    files = {"home.py": "", "index.py": "", "sessions/core.py": "", "sessions/api.py": "", name: text}
    (fault,) = faults_of(tmp_path, files)
    assert fault.startswith(f"{name}:{len(text.splitlines())}: ")
    assert fault.endswith("which is above it")


@pytest.mark.parametrize(
    "text",
    ["import holdfast.errors", "from .. import errors", "from holdfast import __version__", "import re2"],
)
def test_a_runner_that_imports_more_than_the_standard_library_is_refused(tmp_path: Path, text: str) -> None:
    (fault,) = faults_of(tmp_path, {"errors.py": "", "runner/session.py": text})
    assert fault.startswith("runner/session.py:1: the runner imports ")


def test_a_circle_is_refused_and_named_once(tmp_path: Path) -> None:
    files = {"home.py": "from . import config", "config.py": "def f():\n    from . import home"}
    (fault,) = faults_of(tmp_path, files)
    assert "config -> home -> config" in fault or "home -> config -> home" in fault


def test_an_import_cycle_of_types_alone_is_allowed(tmp_path: Path) -> None:
    files = {"home.py": "from . import config", "config.py": "if TYPE_CHECKING:\n    from . import home"}
    assert faults_of(tmp_path, files) == []


@pytest.mark.parametrize(
    "text", ["import asyncio.events", "from typing import Any", "try:\n    import tomllib\nfinally: ..."]
)
@pytest.mark.parametrize("name", ["home.py", "sessions/log.py", "sessions/aio.py", "cli/look.py", "runner/session.py"])
def test_a_heavy_import_on_the_fast_path_is_refused(tmp_path: Path, name: str, text: str) -> None:
    (fault,) = faults_of(tmp_path, {name: text})
    assert "at module level on the fast path" in fault


@pytest.mark.parametrize(
    "name, text",
    [
        ("home.py", "def f():\n    import subprocess"),
        ("home.py", "TYPE_CHECKING = False\nif TYPE_CHECKING:\n    from typing import Any"),
        ("server/app.py", "import asyncio"),
        ("sessions/search.py", "from dataclasses import dataclass"),
    ],
)
def test_a_heavy_import_where_it_is_needed_is_fine(tmp_path: Path, name: str, text: str) -> None:
    assert faults_of(tmp_path, {name: text}) == []


def test_a_slow_module_of_ours_on_the_fast_path_is_refused(tmp_path: Path) -> None:
    (fault,) = faults_of(tmp_path, {"sessions/search.py": "", "sessions/core.py": "from . import search"})
    assert "slow to import" in fault


def test_a_module_without_a_layer_is_refused(tmp_path: Path) -> None:
    (fault,) = faults_of(tmp_path, {"utils.py": ""})
    assert "has no layer" in fault


@pytest.mark.parametrize(
    "text",
    [
        "data.decode()",
        "read().decode('utf-8')",
        "str(data, 'ascii')",
        "str(data, errors='x')",
        "codecs.decode(b)",
    ],
)
def test_decoding_outside_the_read_layer_is_refused(tmp_path: Path, text: str) -> None:
    (fault,) = faults_of(tmp_path, {"sessions/log.py": text, "terminal/text.py": text, "core/wire.py": text})
    assert fault.startswith("sessions/log.py:1: bytes become text")


@pytest.mark.parametrize("text", ["os.fsdecode(name)", "str(7)", "base64.b64decode(x)", "json.loads(data)"])
def test_reading_names_and_records_is_no_decoding(tmp_path: Path, text: str) -> None:
    assert faults_of(tmp_path, {"sessions/log.py": text}) == []


@pytest.mark.parametrize(
    "text",
    [
        "import time\ntime.sleep(1)",
        "import time as t\nt.sleep(1)",
        "import asyncio\nasync def f():\n    await asyncio.sleep(0)",
        "from time import monotonic, sleep",
        "from asyncio import sleep as rest",
        "wait = time.sleep",
    ],
)
def test_a_sleep_in_a_test_is_refused_however_it_is_spelled(text: str) -> None:
    assert sleeps_in(text) == [len(text.splitlines())]


def test_a_command_that_sleeps_is_fine() -> None:
    assert sleeps_in("session = start('sleep 60')\nprobe.sleep(3)\nfrom time import monotonic") == []


def test_the_probe_alone_may_sleep(tmp_path: Path) -> None:
    for name in ("support/probe.py", "support/world.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("import time\ntime.sleep(1)\n")
    assert [fault.path.name for fault in layers.check_tests(tmp_path)] == ["world.py"]


def test_the_command_line_starts_without_any_heavy_module() -> None:
    """The rules above see our own imports; this one sees what the standard library drags in behind them."""
    code = "import sys, holdfast.cli; print(*sorted(sys.modules))"
    done = subprocess.run([sys.executable, "-I", "-c", code], capture_output=True, text=True, check=True, timeout=30)
    bare = subprocess.run(
        [sys.executable, "-I", "-c", "import sys; print(*sys.modules)"],
        capture_output=True,
        text=True,
        check=True,
        timeout=30,
    )
    assert set(done.stdout.split()) & layers.HEAVY <= set(bare.stdout.split())
