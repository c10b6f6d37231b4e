"""The blocks of the guides that need a server, run as they are printed there, against a server of the test."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from support.serving import Serving
    from support.world import World

REPOSITORY = Path(__file__).resolve().parents[2]


def block(page: str, language: str, word: str, serving: Serving) -> str:
    """The block of a guide with this word, for the address and the token of this server."""
    text = (REPOSITORY / "docs" / "guides" / page).read_text(encoding="utf-8")
    blocks: list[str] = re.findall(rf"^```{language} no-run\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    found = [each for each in blocks if word in each]
    assert len(found) == 1, f"{page}: {language}: {word}"
    token = str(serving.world.home / "server" / "token")
    for theirs, ours in (("127.0.0.1:4653", serving.address), ("~/.local/state/holdfast/server/token", token)):
        assert theirs in found[0]
        found[0] = found[0].replace(theirs, ours)
    return found[0]


def run_python(code: str) -> str:
    env = {**os.environ, "PYTHONPATH": str(REPOSITORY / "examples")}
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], env=env, capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_client_of_the_guide_shows_what_a_command_printed(world: World, serving: Serving) -> None:
    (world.cwd / "Makefile").write_text("test:\n\t@echo all passed\n")
    assert run_python(block("http.md", "python", "http_client", serving)) == "all passed\n\n"


def test_the_calls_with_curl_start_a_command_and_follow_events(world: World, serving: Serving) -> None:
    (world.cwd / "Makefile").write_text("test:\n\t@echo all passed\n")
    *calls, follow = block("http.md", "sh", "api()", serving).rstrip().split("\n")
    done = subprocess.run(["bash", "-ec", "\n".join(calls)], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    assert '"reason":"exit"' in done.stdout.replace(" ", "")
    events = world.program(["bash", "-c", f"{calls[0]}\n{follow}"])
    assert [events.line() for _ in range(3)] == ["retry: 2000", "", "event: hello"]
    serving.leave()
    events.wait()


def test_the_attach_of_the_guide_types_and_reads_until_the_end(world: World, serving: Serving) -> None:
    session = world.open().start(["sh", "-c", "read line; echo got $line; exit 3"], tty=True, name="dev")
    run_python(block("attach-over-websocket.md", "python", "websockets", serving))
    assert session.wait(exit=True, timeout=30).reason == "exit"
    assert "got npm test" in session.text()
