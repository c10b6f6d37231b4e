"""What a model asks of each family in a conversation: every tool, most in several ways, and an error.

Each is a generator for `support.model_api`: it is sent what the model would read. What commands print is computed, so
that it cannot be found in what was asked. The same text is looked for whether a client hands on text or structured
content: whoever reads either reads everything.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from support.model_api import ToolCall

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from support.model_api import Conversation


def _found(pattern: str, seen: str) -> str:
    match = re.search(pattern, seen)
    assert match is not None, f"no {pattern} in {seen}"
    return match.group(1)


def _shows(seen: str, *texts: str) -> None:
    for text in texts:
        assert text in seen, f"no {text!r} in {seen}"


def _printed(number: int) -> tuple[str, str]:
    """A shell line, and what it prints."""
    return f"echo seen-$(({number} * 7))", f"seen-{number * 7}"


def _until(path: Path) -> str:
    return f"while [ ! -e {path} ]; do sleep 0.05; done"


def _until_printed(directory: Path, text: str) -> str:
    """Waits until the log of some session has this text."""
    records = directory.parent / "state" / "sessions"
    return f"until grep -qs {text} {records}/*/*.[0-9]*; do sleep 0.05; done"


def _until_exit(directory: Path, code: int) -> str:
    """Waits until some session has ended with this code."""
    records = directory.parent / "state" / "sessions"
    return f"until grep -Eqs '\"code\": ?{code}\\b' {records}/*/exit.json; do sleep 0.05; done"


def native(directory: Path) -> Conversation:
    line, text = _printed(11)
    seen = yield ToolCall("run", {"command": f"{line}; echo err-$((5 * 5)) >&2"})
    _shows(seen, text, "err-25", "exit 0")
    line, text = _printed(12)
    seen = yield ToolCall("run", {"command": f"{line}; exit 3"})
    _shows(seen, text, "exit 3")
    line, text = _printed(13)
    job = f"{_until(directory / 'up')}; {line}; exec sleep 600"
    seen = yield ToolCall("run", {"command": job, "name": "web", "wait_s": 0})
    _shows(seen, "web", "running")
    seen = yield ToolCall("run", {"command": f"touch {directory}/up"})
    seen = yield ToolCall("wait", {"ids": ["web"], "until": "match", "pattern": text})
    _shows(seen, text, "running", "match")
    seen = yield ToolCall("read", {"id": "web", "since": "0"})
    _shows(seen, text, "cursor", "stdout:8")
    seen = yield ToolCall("read", {"id": "web", "search": "seen-"})
    _shows(seen, text)
    seen = yield ToolCall("wait", {"ids": ["web"], "timeout_s": 0})
    _shows(seen, "no exit within", text)
    seen = yield ToolCall("run", {"command": "sh", "tty": True, "name": "shell", "wait_s": 0})
    _shows(seen, "shell", "running")
    line, text = _printed(14)
    seen = yield ToolCall("send", {"id": "shell", "text": line, "wait_s": 20})
    _shows(seen, text)
    seen = yield ToolCall("screen", {"id": "shell"})
    _shows(seen, text)
    seen = yield ToolCall("list", {})
    _shows(seen, "web", "shell", "2 running")
    seen = yield ToolCall("stop", {"ids": ["web", "shell"], "grace_s": 0})
    _shows(seen, "2 of 2 stopped")
    line, text = _printed(15)
    job = f"{line}; {_until(directory / 'go')}; exit 4"
    seen = yield ToolCall("run", {"command": job, "wait_s": 0, "notify": "exit", "name": "told"})
    seen = yield ToolCall("run", {"command": f"touch {directory}/go; {_until_exit(directory, 4)}"})
    seen = yield ToolCall("signals", {})
    while "no new signals" in seen:
        seen = yield ToolCall("signals", {})
    _shows(seen, text, "exit code 4")
    seen = yield ToolCall("read", {"id": "nobody"})
    _shows(seen, "no session", "nobody")


def dominds(directory: Path) -> Conversation:
    line, text = _printed(21)
    seen = yield ToolCall("shell_cmd", {"command": f"{line}; echo err-$((5 * 5)) >&2"})
    _shows(seen, text, "err-25", "exit code: 0")
    line, text = _printed(22)
    job = f"{line}; exec sleep 600"
    seen = yield ToolCall("shell_cmd", {"command": job, "timeoutSeconds": 1})
    _shows(seen, text, "is now running in the background")
    pid = int(_found(r"PID: (\d+)", seen))
    line, other = _printed(23)
    seen = yield ToolCall("shell_cmd", {"command": f"{line}; exit 3"})
    _shows(seen, other, "exit code: 3", "Daemon lifecycle reminder", f"PID {pid}")
    seen = yield ToolCall("get_daemon_output", {"pid": pid})
    _shows(seen, text)
    seen = yield ToolCall("stop_daemon", {"pid": pid})
    _shows(seen, "stopped successfully")
    line, text = _printed(24)
    job = f"{line}; {_until(directory / 'go')}; exit 5"
    seen = yield ToolCall("shell_cmd", {"command": job, "timeoutSeconds": 1})
    seen = yield ToolCall("shell_cmd", {"command": f"touch {directory}/go; {_until_exit(directory, 5)}"})
    seen = yield ToolCall("signals", {})
    while "no new signals" in seen:
        seen = yield ToolCall("signals", {})
    _shows(seen, text, "code 5")
    seen = yield ToolCall("get_daemon_output", {"pid": 2**22 + 7})
    _shows(seen, "No daemon process found")


def evva(directory: Path) -> Conversation:
    line, text = _printed(31)
    seen = yield ToolCall("bash", {"command": f"{line}; echo err-$((5 * 5)) >&2"})
    _shows(seen, text, "err-25")
    line, text = _printed(32)
    seen = yield ToolCall("bash", {"command": f"{line}; exit 3"})
    _shows(seen, text, "exit code 3")
    line, text = _printed(33)
    seen = yield ToolCall("bash", {"command": f"{line}; sleep 600", "timeout": 1500})
    _shows(seen, text, "timed out after 1.5s")
    line, text = _printed(34)
    job = f"{line}; exec sleep 600"
    seen = yield ToolCall("bash", {"command": job, "run_in_background": True})
    daemon = _found(r"Daemon (\w+) started", seen)
    seen = yield ToolCall("bash", {"command": _until_printed(directory, text)})
    _shows(seen, "(no output)")
    seen = yield ToolCall("daemon_output", {"daemon_id": daemon})
    _shows(seen, text, "local_bash/running")
    line, event = _printed(35)
    watched = {"command": f"{line}; exec sleep 600", "description": "a line", "persistent": True, "timeout_ms": 0}
    seen = yield ToolCall("monitor", watched)
    monitor = _found(r"Monitor (\w+) started", seen)
    seen = yield ToolCall("signals", {})
    while "no new signals" in seen:
        seen = yield ToolCall("signals", {})
    _shows(seen, event, monitor)
    seen = yield ToolCall("daemon_list", {})
    _shows(seen, daemon, monitor, "2 daemon(s)")
    for id in (daemon, monitor):
        seen = yield ToolCall("daemon_stop", {"daemon_id": id})
        _shows(seen, id, "terminating")
    seen = yield ToolCall("daemon_output", {"daemon_id": "nobody"})
    _shows(seen, "daemon_output", "nobody", "not found")


def hermes(directory: Path) -> Conversation:
    line, text = _printed(41)
    seen = yield ToolCall("terminal", {"command": f"{line}; echo err-$((5 * 5)) >&2"})
    _shows(seen, text, "err-25")
    line, text = _printed(42)
    seen = yield ToolCall("terminal", {"command": f"{line}; exit 3"})
    _shows(seen, text)
    line, text = _printed(43)
    job = f"{line}; cat"
    seen = yield ToolCall("terminal", {"command": job, "background": True})
    id = _found(r'"session_id": ?"(\w+)"', seen)
    seen = yield ToolCall("terminal", {"command": _until_printed(directory, text)})
    for action in ("list", "poll", "log"):
        seen = yield ToolCall("process", {"action": action, "session_id": id})
        _shows(seen, id, text)
    seen = yield ToolCall("process", {"action": "submit", "session_id": id, "data": "line for cat"})
    _shows(seen, "ok")
    seen = yield ToolCall("process", {"action": "close", "session_id": id})
    seen = yield ToolCall("process", {"action": "wait", "session_id": id})
    _shows(seen, text, "line for cat", "exited")
    line, text = _printed(44)
    seen = yield ToolCall("terminal", {"command": f"{line}; exit 5", "background": True, "notify": True})
    seen = yield ToolCall("terminal", {"command": _until_exit(directory, 5)})
    seen = yield ToolCall("signals", {})
    while "no new signals" in seen:
        seen = yield ToolCall("signals", {})
    _shows(seen, text)
    seen = yield ToolCall("process", {"action": "poll", "session_id": "nobody"})
    _shows(seen, "not_found", "nobody")


def openclaw(directory: Path) -> Conversation:
    line, text = _printed(51)
    seen = yield ToolCall("exec", {"command": f"{line}; echo err-$((5 * 5)) >&2"})
    _shows(seen, text, "err-25")
    line, text = _printed(52)
    seen = yield ToolCall("exec", {"command": f"{line}; exit 3"})
    _shows(seen, text, "exited with code 3")
    line, text = _printed(53)
    job = f"{line}; cat"
    seen = yield ToolCall("exec", {"command": job, "background": True, "pty": True})
    id = _found(r"session ([a-z0-9-]+), pid", seen)
    seen = yield ToolCall("exec", {"command": _until_printed(directory, text)})
    seen = yield ToolCall("process", {"action": "list"})
    _shows(seen, id, "running")
    for action in ("poll", "log"):
        seen = yield ToolCall("process", {"action": action, "sessionId": id})
        _shows(seen, text)
    seen = yield ToolCall("process", {"action": "write", "sessionId": id, "data": "typed-text\n"})
    _shows(seen, "Wrote 11 bytes")
    seen = yield ToolCall("process", {"action": "poll", "sessionId": id, "timeout": 20_000})
    _shows(seen, "typed-text")
    seen = yield ToolCall("process", {"action": "kill", "sessionId": id})
    _shows(seen, "Termination requested")
    line, text = _printed(54)
    slow = f"{line}; exec sleep 600"
    seen = yield ToolCall("exec", {"command": slow, "yieldMs": 1500})
    _shows(seen, text, "Command still running")
    seen = yield ToolCall("process", {"action": "kill", "all": True})
    line, text = _printed(55)
    seen = yield ToolCall("exec", {"command": f"{line}; exit 5", "background": True})
    seen = yield ToolCall("exec", {"command": _until_exit(directory, 5)})
    seen = yield ToolCall("signals", {})
    while "no new signals" in seen:
        seen = yield ToolCall("signals", {})
    _shows(seen, text)
    seen = yield ToolCall("process", {"action": "poll", "sessionId": "nobody"})
    _shows(seen, "No session found for nobody")


CONVERSATIONS: dict[str, Callable[[Path], Conversation]] = {
    "native": native,
    "dominds": dominds,
    "evva": evva,
    "hermes": hermes,
    "openclaw": openclaw,
}
