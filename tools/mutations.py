"""Breaks the product on purpose, one small change at a time, and sees that a test notices.

    python tools/mutations.py [NAME...]

Each change is made in a copy of `src/`, and the named test is run against the copy. Exit 1 where a test still passes,
or where the text to change is no longer in the source: then this list is out of date.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

REPOSITORY = Path(__file__).resolve().parents[1]


class Mutation(NamedTuple):
    name: str
    file: str
    before: str
    after: str
    test: str


MUTATIONS = (
    Mutation(
        "a process is signalled without a look at its start time",
        "core/processes.py",
        "            if not same(pid, start):\n                return None\n",
        "",
        "tests/core/test_processes.py::test_a_process_with_another_start_time_is_not_signalled",
    ),
    Mutation(
        "a tree is killed without being frozen",
        "core/processes.py",
        "problem = send(process, signal.SIGSTOP)",
        "problem = None",
        "tests/core/test_processes.py::test_the_whole_tree_stands_still_before_its_first_member_is_killed",
    ),
    Mutation(
        "secrets are redacted in one round",
        "signals/redact.py",
        "_ROUNDS_MAX = 4",
        "_ROUNDS_MAX = 1",
        "tests/signals/test_redact.py::test_a_secret_that_another_one_hid_is_found_once_that_is_gone",
    ),
    Mutation(
        "an exact client that was overtaken jumps to the end",
        "runner/terminal/attach.py",
        "to = at if payload else end",
        "to = end",
        "tests/terminal/test_attach.py::"
        "test_an_exact_client_that_the_cap_has_overtaken_continues_at_the_first_retained_byte[behind]",
    ),
    Mutation(
        "an exact client that resumes before the first byte jumps to the end",
        "runner/terminal/attach.py",
        "self._resume_at(first)",
        "self._resume_at(end)",
        "tests/terminal/test_attach.py::"
        "test_an_exact_client_that_the_cap_has_overtaken_continues_at_the_first_retained_byte[resumed]",
    ),
    Mutation(
        "a wake comes 60 ms late",
        "core/wake.py",
        "hint = f\"{session or 'home'} {seq}\".encode()\n",
        'hint = f"{session or \'home\'} {seq}".encode()\n    __import__("time").sleep(0.06)\n',
        "tests/signals/test_succession.py::test_exit_makes_the_descriptor_readable_at_once",
    ),
    Mutation(
        "a client that was skipped ahead is not shown the screen again",
        "runner/terminal/attach.py",
        'self._gap(self._at, terminal.tracker.ground, "skipped")\n            self._start_over()',
        'self._gap(self._at, terminal.tracker.ground, "skipped")\n            self._init(terminal.tracker.ground)',
        "tests/terminal/test_attach.py::test_a_stopped_client_slows_nothing_and_wakes_to_a_gap_and_the_screen",
    ),
    Mutation(
        "one of ten clients that was skipped ahead is not shown the screen again",
        "runner/terminal/attach.py",
        'self._gap(self._at, terminal.tracker.ground, "skipped")\n            self._start_over()',
        'self._gap(self._at, terminal.tracker.ground, "skipped")\n            self._init(terminal.tracker.ground)',
        "tests/terminal/test_many_clients.py::"
        "test_ten_mixed_clients_show_the_same_after_a_minute_of_typing_resizing_and_output",
    ),
)


def notices(mutation: Mutation) -> str | None:
    """None when the test failed, as it should; else what is wrong."""
    with tempfile.TemporaryDirectory() as scratch:
        source = Path(scratch, "src")
        shutil.copytree(REPOSITORY / "src", source, ignore=shutil.ignore_patterns("__pycache__"))
        file = source / "holdfast" / mutation.file
        text = file.read_text(encoding="utf-8")
        if text.count(mutation.before) != 1:
            return f"{mutation.file} has {text.count(mutation.before)} places to change"
        file.write_text(text.replace(mutation.before, mutation.after), encoding="utf-8")
        # The copy comes before the source that the environment installed.
        env = {**os.environ, "PYTHONPATH": str(source), "HOLDFAST_TESTS": "", "PYTHONDONTWRITEBYTECODE": "1"}
        options = ["-q", "-x", "-p", "no:randomly", "-p", "no:cacheprovider", "-p", "no:xdist"]
        run = [sys.executable, "-m", "pytest", *options, mutation.test]
        done = subprocess.run(run, cwd=REPOSITORY, env=env, capture_output=True, text=True, check=False)
    if done.returncode == 0:
        return f"{mutation.test} still passes"
    if done.returncode != 1 or ("AssertionError" not in done.stdout + done.stderr and "TooLate" not in done.stdout):
        return f"{mutation.test} did not fail but broke:\n{done.stdout[-2000:]}{done.stderr[-2000:]}"
    return None


def main(names: list[str]) -> int:
    wrong = 0
    for mutation in MUTATIONS:
        if names and mutation.name not in names:
            continue
        problem = notices(mutation)
        wrong += problem is not None
        print(f"{mutation.name}: {problem or 'noticed'}", flush=True)
    return 1 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
