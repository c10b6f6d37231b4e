"""Does a command wait for somebody? The patterns, what evidence makes of them, and real programs on real terminals."""

# ruff: noqa: RUF001 - the signs that programs point with are the subject here

from __future__ import annotations

import socket
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from holdfast.runner.features.needs_input import foreground
from holdfast.runner.features.needs_input.foreground import ForegroundLook
from holdfast.runner.features.needs_input.question import (
    KINDS,
    LOOK_S,
    QUIET_S,
    Looks,
    Patterns,
    Seen,
    bounded,
    busy,
    decide,
    line_of,
    spins,
    split,
)
from holdfast.runner.features.patterns import BadPattern
from support import interpreters
from support.stage import Stage, on_stage

PATTERNS = Patterns()


def kind_of(*rows: str, column: int | None = None, patterns: Patterns = PATTERNS, **facts: Any) -> str | None:
    """With the cursor behind the last row, unless told otherwise."""
    facts = {"inverse": False, "cursor_visible": True, "leader": False, **facts}
    found = patterns.find(rows, len(rows[-1]) if column is None else column, **facts)
    return found and found[0]


@pytest.mark.covers("terminal:44")
@pytest.mark.parametrize(
    "kind, row",
    [
        ("secret", "Password: "),
        ("secret", "[sudo] password for somebody: "),
        ("secret", "Enter passphrase for key '/home/me/.ssh/id_ed25519': "),
        ("secret", "Password for 'https://me@example.org:8443': "),
        ("secret", "Enter PIN: "),
        ("secret", "Enter PIN for authenticator:"),
        ("secret", "Verification code: "),
        ("secret", "Enter your one-time password:  "),
        ("secret", "Enter the 2FA code:"),
        ("choice", "Do you want to continue? [Y/n] "),
        ("choice", "Overwrite? (y/N) "),
        ("choice", "rm: really (yes|no)? "),
        ("choice", "Are you sure you want to continue connecting (yes/no/[fingerprint])? "),
        ("choice", "Are you sure [yes/no/[fingerprint]]?"),
        ("choice", "Proceed ([y]/n)? "),
        ("choice", "Retry [r/a/f]: "),
        ("choice", "Apply (yes/no) [no]: "),
        ("choice", "Save changes (save / discard / keep both)? "),
        ("question", "Name? "),
        ("question", "What is your quest?"),
        ("question", "Project name?: "),
        ("question", "Stage this hunk [y,n,q,a,d,e,?]? "),
        ("question", "続けますか？"),
        ("continue", "Press any key to continue . . . "),
        ("continue", "Press [Enter] to continue"),
        ("continue", "Hit RETURN when done: "),
        ("continue", "-- Press q to quit --"),
        ("continue", "Type 'y' to go on: "),
        ("pager", ":"),
        ("pager", "(END)"),
        ("pager", "lines 1-23/120 (END)"),
        ("pager", "lines 1-23"),
        ("pager", "--More--"),
        ("pager", "--More--(45%)"),
        ("pager", " Manual page ls(1) line 1 (press h for help or q to quit)"),
        ("repl", ">>> "),
        ("repl", "... "),
        ("repl", "In [12]: "),
        ("repl", "   ...: "),
        ("repl", "mysql> "),
        ("repl", "irb(main):001:0> "),
        ("repl", "> "),
        ("repl", "(gdb) "),
        ("repl", "(Pdb) "),
        ("repl", "│ > "),
        ("shell", "$ "),
        ("shell", "bash-5.2# "),
        ("shell", "me@host:~/src$ "),
        ("shell", "[me@host src]$ "),
        ("shell", "host1% "),
        ("shell", "~/src ❯ "),
        ("shell", "❯ "),
        ("repl", "db=# "),
        ("repl", "db=> "),
        ("repl", "db-> "),
        ("repl", "db'*# "),
        ("repl", "user=> "),
        ("repl", "sqlite> "),
        ("repl", "  DB<1> "),
        ("repl", "php > "),
    ],
)
def test_a_row_that_asks_is_known_by_its_end(kind: str, row: str) -> None:
    columns = sum(2 if character > "\u3000" else 1 for character in row)
    assert kind_of(row, column=columns) == kind


@pytest.mark.parametrize(
    "row",
    [
        "",
        "   ",
        "Compiling holdfast v0.1.0",
        "Downloading [3/10]",
        "[12/345]",
        "Progress (12/345): ",
        "45% ",
        "Progress: 100%",
        "12.5 % ",
        "[#########",
        "[=====>",
        "==> ",
        "##### ",
        "1.2 (MB/s)",
        "Installing ... ",
        "Waiting...",
        "Invalid password: try again",
        "Listening on http://localhost:3000/",
        "Press Ctrl+C to quit",
        "what? no",
        "?",
        "Type a name",
    ],
)
def test_output_that_asks_nothing_is_nothing(row: str) -> None:
    assert kind_of(row) is None


def test_a_question_counts_with_the_cursor_right_behind_it() -> None:
    assert kind_of("Name? ", column=6) == "question"
    assert kind_of("Name? ", column=5) == "question"
    assert kind_of("Name? Arthur", column=12) is None
    assert kind_of("Name? ", column=20) is None
    assert kind_of("Name?  (default: me)", column=6) is None
    assert kind_of("│ Name?            │", column=8) == "question"


def test_a_second_prompt_at_the_right_edge_is_no_matter() -> None:
    row = "~/src ❯ " + " " * 40 + "main 12:01"
    assert kind_of(row, column=8) == "shell"


def test_columns_are_cells() -> None:
    assert split("名前は？ x", 8) == ("名前は？", " x")
    assert split("e\u0301? x", 2) == ("e\u0301?", " x")
    assert split("ab", 4) == ("ab  ", "")
    assert split("é", 3) == ("é  ", "")


def test_a_command_typed_at_a_shell_may_end_in_anything() -> None:
    assert kind_of("me@host:~$ ls what?", leader=True) == "shell"
    assert kind_of("me@host:~$ ls what?", leader=False) == "question"


INQUIRER = ["? Pick one:", "❯ apple", "  banana", "  cherry", ""]


@pytest.mark.covers("terminal:44")
@pytest.mark.parametrize(
    "rows, line",
    [
        (INQUIRER[:4], "❯ apple"),
        ([*INQUIRER[:-2], ""], "❯ apple"),
        (["Do you want to proceed?", " ❯ 1. Yes", "   2. No"], "❯ 1. Yes"),
        (["  ◯ one", "» ◯ two", ""], "» ◯ two"),
        (["○ one", "● two"], "● two"),
        (["│ ❯ yes │", "│   no  │", ""], "❯ yes"),
        (["Choose (use arrow keys)", ""], "Choose (use arrow keys)"),
        (["↑/↓ to move, enter to select", ""], "↑/↓ to move, enter to select"),
        (["Press Enter to choose, arrows to move", ""], "Press Enter to choose, arrows to move"),
    ],
)
def test_a_menu_is_a_pointer_beside_aligned_rows_or_a_hint(rows: list[str], line: str) -> None:
    found = PATTERNS.find(rows, 0, inverse=False, cursor_visible=True, leader=False)
    assert found == ("menu", line)


@pytest.mark.parametrize(
    "rows",
    [
        ["❯ apple", "❯ banana", ""],
        ["❯ apple", "", ""],
        ["❯ apple", "banana", ""],
        ["❯ apple", "  banana", "Installing"],
        ["❯ apple", "  banana", "", "", "", ""],
        ["> 12 | broken", "  13 | fine", ""],
        ["> project@1.0.0 build", "> tsc", ""],
        ["* main", "  topic", ""],
        ["use arrow keys", "", "", "", ""],
    ],
)
def test_rows_that_only_look_like_one_are_no_menu(rows: list[str]) -> None:
    assert kind_of(*rows) is None


def test_a_bare_angle_points_only_where_the_cursor_is_hidden() -> None:
    assert kind_of("> one", "  two", "", cursor_visible=False) == "menu"
    assert kind_of("> one", "  two", "", cursor_visible=True) is None


def test_a_prompt_below_a_list_is_the_prompt() -> None:
    assert kind_of("❯ main", "  topic", "$ ") == "shell"


def test_a_row_in_reverse_video_with_the_cursor_behind_it_is_a_pager() -> None:
    assert kind_of("/etc/services", inverse=True) == "pager"
    assert kind_of("   < OK >", inverse=True) is None
    assert kind_of("/etc/services") is None


# Patterns of a user.


def test_added_patterns_come_first_and_replace_only_on_request() -> None:
    added = Patterns({"question": [r"Approve deployment:$"], "secret": [r"(?i)api key: ?$"]})
    assert kind_of("Approve deployment:", patterns=added) == "question"
    assert kind_of("Your API key: ", patterns=added) == "secret"
    assert kind_of("Name? ", patterns=added) == "question"
    replaced = Patterns({"question": [r"Approve deployment:$"]}, replace=True)
    assert kind_of("Approve deployment:", patterns=replaced) == "question"
    assert kind_of("Name? ", patterns=replaced) is None
    assert kind_of("Password: ", patterns=replaced) == "secret"
    assert kind_of("❯ one", "  two", "", patterns=Patterns({"menu": ["never"]}, replace=True)) is None


@pytest.mark.parametrize(
    "source",
    [
        "(a+)+$",
        "(a|aa)+$",
        "(a|b?)*c",
        "(?:a?b?)*$",
        "(.*)*x",
        "(?:\\w+\\s?)+:",
        "a.*b.*c.*d",
        r"(a)\1",
        "(?:a{2,5}){9,}",
        "(?:a{2,5}){2,5}",
        "(?=(a+)+)b",
        "(",
        "",
        "x" * 257,
        "(?:" * 120 + "a" + ")" * 120 + "**",
    ],
)
def test_a_pattern_that_could_take_long_is_refused(source: str) -> None:
    with pytest.raises(BadPattern):
        Patterns({"question": [source]})


@pytest.mark.parametrize(
    "source", [r"Name:\s*$", r"(?:yes|no)\?", r"\d+ of \d+:$", r"(?i)^(?:foo|bar){1,3}$", r"a(?:b?c){2}$"]
)
def test_a_pattern_that_cannot_is_taken(source: str) -> None:
    assert bounded(source).pattern == source


def test_a_kind_that_is_invalid_is_refused() -> None:
    with pytest.raises(BadPattern):
        Patterns({"sometimes": ["x"]})


pieces = st.sampled_from(
    [
        "(",
        ")",
        "[",
        "]",
        "/",
        "|",
        "a",
        "y",
        " ",
        "?",
        ":",
        "#",
        "%",
        "$",
        ">",
        "password",
        "press ",
        "1",
        ".",
        "❯ ",
        "名",
    ]
)
rows_of_anything = st.lists(st.lists(pieces, max_size=200).map("".join) | st.text(max_size=50), min_size=1, max_size=5)


@given(rows=rows_of_anything, column=st.integers(0, 1000), facts=st.tuples(st.booleans(), st.booleans(), st.booleans()))
def test_any_screen_has_a_kind_or_none(rows: list[str], column: int, facts: tuple[bool, bool, bool]) -> None:
    found = PATTERNS.find(rows, column, inverse=facts[0], cursor_visible=facts[1], leader=facts[2])
    if found is not None:
        assert found[0] in KINDS
        assert found[1].isprintable()
        assert len(found[1]) <= 512


@pytest.mark.parametrize(
    "piece",
    [
        "(",
        "[a/",
        "[a/[",
        "[(",
        "password ",
        "press ",
        "press a ",
        "> ",
        "? ",
        "a",
        "a/",
        " ",
        "\t",
        "#",
        "%",
        "enter ↑ ",
    ],
)
def test_no_row_however_hostile_makes_a_look_long(piece: str) -> None:
    rows = [(piece * 10_000)[:9_999] + end for end in ("", ":", "?", "]", ")? ", "\x00")]
    began = time.process_time()
    for row in rows:
        kind_of(row, row, row, row)
        busy([row] * 4)
    assert (time.process_time() - began) / len(rows) < 0.05


def test_an_added_pattern_stays_short_on_the_worst_row_it_may_see() -> None:
    patterns = Patterns({"question": [r".*a.*b$", r"\w+\s+$", r"(?:a|b|ab){8}c"]})
    began = time.process_time()
    kind_of("a" * 10_000, patterns=patterns)
    kind_of("ab" * 5_000, patterns=patterns)
    assert time.process_time() - began < 0.5


# Busy markers.


def test_a_program_that_says_how_to_interrupt_it_is_busy() -> None:
    assert busy(["✻ Thinking… (12s · esc to interrupt)"])
    assert busy(["Running (ctrl+c to stop)"])
    assert not busy(["↑/↓ to move · enter to select · esc to cancel", "Press Ctrl+C to quit"])


def test_a_spinner_is_one_cell_that_turns() -> None:
    assert spins(["⠋ building"], ["⠙ building"])
    assert spins(["- working", "x"], ["\\ working", "x"])
    assert not spins(["⠋ building"], ["⠋ building"])
    assert not spins(["count 1"], ["count 2"])
    assert not spins(["⠋ one"], ["⠙ two"])


# From evidence to a verdict.


def verdict(*rows: str, **facts: Any) -> dict[str, Any]:
    return decide(Seen(rows, len(rows[-1]), **{"quiet_s": 1.0, **facts}), PATTERNS)


def brief(*rows: str, **facts: Any) -> tuple[str, str | None, str | None]:
    found = verdict(*rows, **facts)
    return found["state"], found["confidence"], found["kind"]


@pytest.mark.covers("terminal:44")
@pytest.mark.parametrize(
    "rows, facts, wanted",
    [
        # Nothing at all: silence is quiet, however long.
        (["x"], {"quiet_s": 1e9}, ("quiet", None, None)),
        (["x"], {"quiet_s": 1.0}, ("working", None, None)),
        (["x"], {"quiet_s": 1e9, "vetoes": ["running"]}, ("working", None, None)),
        # High.
        (["Password: "], {"blocked_read": True, "echo_off": True}, ("needs_input", "high", "secret")),
        (["Token"], {"blocked_read": True, "echo_off": True}, ("needs_input", "high", "secret")),
        (["Name? "], {"blocked_read": True}, ("needs_input", "high", "question")),
        (["Go on? [Y/n] "], {"blocked_read": True, "leader": False}, ("needs_input", "high", "choice")),
        ([":"], {"blocked_read": True}, ("at_prompt", "high", "pager")),
        (["who? "], {"blocked_read": True, "prompt_mark": True}, ("at_prompt", "high", "shell")),
        (["who? "], {"blocked_read": True, "prompt_mark": True, "leader": False}, ("needs_input", "high", "question")),
        (["Password: "], {"echo_off": True}, ("needs_input", "high", "secret")),
        # A process beside the reader may run.
        (["Name? "], {"blocked_read": True, "vetoes": ["running"]}, ("needs_input", "high", "question")),
        # The screen's own word against it.
        (["Name? "], {"blocked_read": True, "vetoes": ["synchronized"]}, ("working", None, None)),
        (["Name? "], {"blocked_read": True, "vetoes": ["output"], "quiet_s": 9}, ("working", None, None)),
        (["esc to interrupt", "❯ "], {"blocked_read": True}, ("working", None, None)),
        # Medium.
        (["Name? "], {"blocked_read": False, "quiet_s": 4.9}, ("working", None, None)),
        (["Name? "], {"blocked_read": False, "quiet_s": 5.0}, ("needs_input", "medium", "question")),
        (["x"], {"bell": True, "quiet_s": 5.0}, ("needs_input", "medium", None)),
        (["x"], {"bell": True, "quiet_s": 4.0}, ("working", None, None)),
        (["$ "], {"bell": True, "blocked_read": False, "quiet_s": 5.0}, ("at_prompt", "medium", "shell")),
        (["Name? "], {"quiet_s": 9, "vetoes": ["running"]}, ("working", None, None)),
        (["λ "], {"prompt_mark": True, "blocked_read": False}, ("at_prompt", "medium", "shell")),
        (["Password: "], {"blocked_read": False, "echo_off": True, "quiet_s": 5}, ("needs_input", "medium", "secret")),
        # Low.
        (["x"], {"blocked_read": True}, ("needs_input", "low", None)),
        (["x"], {"echo_off": True, "blocked_read": False}, ("needs_input", "low", "secret")),
        (["x"], {"blocked_read": True, "vetoes": ["running"]}, ("working", None, None)),
    ],
)
def test_evidence_makes_the_state(
    rows: list[str], facts: dict[str, Any], wanted: tuple[str, str | None, str | None]
) -> None:
    assert brief(*rows, **facts) == wanted


def test_a_verdict_reports_all_it_stands_on() -> None:
    assert verdict("some", "Password: ", blocked_read=True, echo_off=True, bell=True) == {
        "state": "needs_input",
        "confidence": "high",
        "kind": "secret",
        "evidence": ["blocked_read", "echo_off", "pattern", "bell"],
        "line": "Password:",
        "secret": True,
        "hung": None,
    }


def test_the_line_of_a_verdict_is_the_last_that_says_anything_and_carries_no_control() -> None:
    assert verdict("above", "", blocked_read=True)["line"] == "above"
    assert verdict("\x1b[31mred\x07? ", blocked_read=True)["line"] == "[31mred?"
    assert line_of("x" * 5000) == "x" * 512


@pytest.mark.parametrize(
    "facts, hung",
    [
        ({"stopped": "SIGTTIN"}, "SIGTTIN"),
        ({"vetoes": ["disk_wait"]}, "disk_wait"),
        ({"cpu_idle": True}, "no_cpu"),
        ({}, None),
    ],
)
def test_a_quiet_one_says_when_it_looks_hung(facts: dict[str, Any], hung: str | None) -> None:
    found = verdict("x", quiet_s=60.0, **facts)
    assert (found["state"], found["hung"]) == ("quiet", hung)
    assert verdict("x", quiet_s=1.0, **facts)["hung"] is None


@given(
    rows=rows_of_anything,
    quiet_s=st.floats(0, 100),
    blocked_read=st.none() | st.booleans(),
    flags=st.fixed_dictionaries({name: st.booleans() for name in ("echo_off", "prompt_mark", "bell", "leader")}),
    vetoes=st.lists(st.sampled_from(["running", "disk_wait", "spinner", "synchronized", "output"]), max_size=2),
)
@example(rows=["x"], quiet_s=1e6, blocked_read=False, flags={"leader": False}, vetoes=[])
def test_no_verdict_contradicts_itself(
    rows: list[str], quiet_s: float, blocked_read: bool | None, flags: dict[str, bool], vetoes: list[str]
) -> None:
    found = verdict(*rows, quiet_s=quiet_s, blocked_read=blocked_read, vetoes=vetoes, **flags)
    asks = found["state"] in ("needs_input", "at_prompt")
    assert asks == (found["confidence"] is not None)
    if asks:
        assert found["evidence"]
        assert not set(vetoes) - {"running", "disk_wait"}
    else:
        assert found["kind"] is None
        assert not found["secret"]
    if found["confidence"] == "medium" and not (flags.get("prompt_mark") and flags.get("leader")):
        assert quiet_s >= QUIET_S
        assert not vetoes
    if found["hung"]:
        assert found["state"] == "quiet"


# Two looks.


def test_one_look_is_never_an_answer() -> None:
    looks = Looks()
    asking = verdict("Name? ", blocked_read=True)
    first = looks.see(10.0, 100, asking, 0.5)
    assert (first["state"], first["kind"], looks.due_s) == ("working", None, LOOK_S)
    assert looks.see(10.2, 100, asking, 0.7)["state"] == "working"
    assert looks.due_s == pytest.approx(LOOK_S - 0.2)
    assert looks.see(10.5, 100, asking, 1.0) == asking
    assert looks.due_s is None


@pytest.mark.covers("terminal:44")
def test_a_prompt_that_flashes_between_two_outputs_is_nothing() -> None:
    looks = Looks()
    asking = verdict("Name? ", blocked_read=True)
    assert looks.see(10.0, 100, asking, 0.5)["state"] == "working"
    assert looks.see(10.5, 130, asking, 0.1)["state"] == "working"
    assert looks.see(11.0, 160, verdict("building"), 0.2)["state"] == "working"
    assert looks.see(11.5, 160, asking, 0.7)["state"] == "working"
    assert looks.see(12.0, 160, asking, 1.2)["state"] == "needs_input"


def test_a_silent_command_is_looked_at_twice_and_then_left_alone() -> None:
    looks = Looks()
    assert looks.see(10.0, 5, verdict("x", quiet_s=0.5), 0.5)["state"] == "working"
    assert looks.due_s == QUIET_S - 0.5
    assert looks.see(14.5, 5, verdict("x", quiet_s=QUIET_S), QUIET_S)["state"] == "quiet"
    assert looks.due_s is None
    looks.output()
    assert looks.due_s == LOOK_S


def test_a_busy_command_is_looked_at_less_and_less_and_then_left_alone() -> None:
    looks, now, due = Looks(), 10.0, []
    while looks.due_s is not None:
        now += looks.due_s
        looks.see(now, 5, verdict("x", quiet_s=now - 10, vetoes=["running"]), now - 10)
        due.append(looks.due_s)
        assert len(due) < 20
    assert now - 10 < 60


# Real programs.


def look_at(stage: Stage) -> ForegroundLook:
    return foreground.look(stage.device, stage.foreground)


def look(stage: Stage, quiet_s: float) -> dict[str, Any]:
    """As a runner does it, with the quiet it would have after so long."""
    who = look_at(stage)
    return decide(
        Seen(
            stage.rows(),
            stage.column,
            quiet_s=quiet_s,
            blocked_read=who.blocked_read,
            polled_read=who.polled_read,
            echo_off=stage.echo_off(),
            leader=stage.foreground == stage.pid,
            vetoes=who.vetoes,
            inverse=stage.inverse(),
            stopped=who.stopped,
        ),
        PATTERNS,
    )


PYTHON = (sys.executable, "-I", "-S", "-c")
MENU = """
import sys, tty
tty.setcbreak(0)
print("Pick one (use arrow keys)\\n\\x1b[36m\\u276f apple\\x1b[m\\n  banana\\n  cherry", flush=True)
sys.stdin.read(1)
"""
HOST_KEY = (
    "echo \"The authenticity of host 'h (10.0.0.1)' can't be established.\"; echo 'ED25519 key fingerprint is X.';"
    "read -p 'Are you sure you want to continue connecting (yes/no/[fingerprint])? ' x"
)


@pytest.mark.covers("terminal:44")
@pytest.mark.parametrize(
    "argv, printed, quiet_s, wanted",
    [
        (("bash", "-c", "read -s -p 'Password: ' x"), b"Password: ", 1.0, ("needs_input", "high", "secret")),
        (("bash", "-c", "read -s x"), b"", 1.0, ("needs_input", "high", "secret")),
        ((*PYTHON, "import getpass; getpass.getpass()"), b"Password: ", 1.0, ("needs_input", "high", "secret")),
        ((*PYTHON, "input('Name? ')"), b"Name? ", 1.0, ("needs_input", "high", "question")),
        (("bash", "-c", HOST_KEY), b"])? ", 1.0, ("needs_input", "high", "choice")),
        ((*PYTHON, MENU), b"cherry", 1.0, ("needs_input", "high", "menu")),
        (("less", "/etc/passwd"), b"/etc/passwd", 1.0, ("at_prompt", "high", "pager")),
        (("sh", "-c", "seq 1000 | less"), b":", 1.0, ("at_prompt", "high", "pager")),
        (("sh", "-c", "echo ready; exec cat"), b"ready\r\n", 1.0, ("needs_input", "low", None)),
        (("sh", "-c", "printf '$ '; exec sleep 3600"), b"$ ", QUIET_S, ("at_prompt", "medium", "shell")),
        (("sh", "-c", "printf '$ '; exec sleep 3600"), b"$ ", 1.0, ("working", None, None)),
        ((*PYTHON, "import code; code.InteractiveConsole().interact('')"), b">>> ", 1.0, ("at_prompt", "high", "repl")),
    ],
)
def test_a_real_program_is_seen_to_ask(
    argv: tuple[str, ...], printed: bytes, quiet_s: float, wanted: tuple[str, str | None, str | None]
) -> None:
    with on_stage(*argv) as stage:
        stage.read_until(printed)

        def settled() -> bool:
            found = look(stage, quiet_s)
            return (found["state"], found["confidence"], found["kind"]) == wanted

        stage.until(settled, str(wanted))
        assert look(stage, quiet_s)["secret"] == (wanted[2] == "secret")


# Programs with their own line editor keep the terminal raw and sleep in poll, select or epoll.
POLL = "import select, sys; p = select.{0}(); p.register(0, {1}); sys.stdout.write('> '); sys.stdout.flush(); p.poll()"
SELECT = "import select, sys; sys.stdout.write('> '); sys.stdout.flush(); select.select({0}, [], [])"


@pytest.mark.covers("found:51")
@pytest.mark.parametrize(
    "argv, printed, kind",
    [
        (("bash", "--norc", "--noprofile"), b"bash-", "shell"),
        (("fish", "--no-config", "-C", "function fish_prompt; printf 'fish> '; end"), b"fish> ", "repl"),
        (("node",), b"> ", "repl"),
        (("ipython3", "--quick", "--no-banner", "--ipython-dir=SCRATCH"), b"In ", "repl"),
        ((*PYTHON, SELECT.format([0])), b"> ", "repl"),
        ((*PYTHON, POLL.format("poll", "select.POLLIN")), b"> ", "repl"),
        ((*PYTHON, POLL.format("epoll", "select.EPOLLIN")), b"> ", "repl"),
        *(((f"python{version}", "-q"), b">>> ", "repl") for version in interpreters.NAMED),
    ],
)
def test_a_line_editor_at_its_prompt_is_seen_without_a_long_silence(
    argv: tuple[str, ...], printed: bytes, kind: str, tmp_path: Path
) -> None:
    if argv[0].startswith("python3."):
        argv = (interpreters.named(argv[0].removeprefix("python")), *argv[1:])
    with on_stage(*(word.replace("SCRATCH", str(tmp_path)) for word in argv)) as stage:
        stage.read_until(printed, 20)
        seen: list[dict[str, Any]] = []

        def settled() -> bool:
            seen.append(look(stage, 1.0))
            return bool(seen[-1]["state"] == "at_prompt")

        stage.until(settled, f"the prompt of {argv[0]}")
        assert (seen[-1]["confidence"], seen[-1]["kind"]) == ("medium", kind)
        assert seen[-1]["evidence"] == ["polled_read", "pattern"]


def postgres(server: socket.socket) -> None:
    """As much of a database server as its client needs to show a prompt."""
    peer, _ = server.accept()
    with peer:
        peer.recv(65536)
        peer.sendall(b"R\0\0\0\x08\0\0\0\0" + b"S\0\0\0\x18server_version\x0015.0\0" + b"Z\0\0\0\x05I")
        peer.recv(1)


@pytest.mark.covers("found:51")
def test_the_client_of_a_database_is_at_its_prompt() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, ThreadPoolExecutor(1) as thread:
        serving = thread.submit(postgres, server)
        where = f"host=127.0.0.1 port={server.getsockname()[1]} user=me dbname=db sslmode=disable gssencmode=disable"
        with on_stage("psql", "-X", where) as stage:
            stage.read_until(b"db=")
            stage.until(lambda: look(stage, 1.0)["state"] == "at_prompt", "the prompt of psql")
            assert look(stage, 1.0)["kind"] == "repl"
        serving.result(30)


@pytest.mark.parametrize(
    "code",
    [
        # What it waits for is not the terminal, or not input.
        SELECT.format("[os.pipe()[0]]").replace("import ", "import os, "),
        POLL.format("poll", "select.POLLPRI"),
        POLL.format("epoll", "select.EPOLLPRI"),
        "import select, sys; sys.stdout.write('> '); sys.stdout.flush(); select.poll().poll()",
    ],
)
def test_a_poll_for_something_else_beside_a_prompt_proves_nothing(code: str) -> None:
    with on_stage(*PYTHON, code) as stage:
        stage.read_until(b"> ")
        stage.until(lambda: not look(stage, 1.0)["evidence"][1:] and not look_at(stage).vetoes, "rest")
        assert look(stage, 1.0)["evidence"] == ["pattern"]
        assert look(stage, 1.0)["state"] == "working"


def test_a_program_that_fills_the_screen_and_polls_asks_nothing() -> None:
    with on_stage("vim", "-u", "NONE", "/etc/passwd") as stage:
        stage.read_until(b"/etc/passwd")
        stage.until(lambda: look_at(stage).polled_read and not look_at(stage).vetoes, "its poll")
        assert look(stage, QUIET_S)["state"] == "quiet"


@pytest.mark.covers("terminal:44")
@pytest.mark.parametrize("quiet_s", [1.0, 60.0, 3600.0])
def test_a_real_sleeper_is_quiet_and_never_asks(quiet_s: float) -> None:
    with on_stage("sleep", "3600") as stage:
        wanted = "working" if quiet_s < QUIET_S else "quiet"
        stage.until(lambda: look(stage, quiet_s)["state"] == wanted, wanted)
        assert look(stage, quiet_s)["confidence"] is None


def test_a_program_asking_from_inside_a_shell_is_distinguished_from_the_shell() -> None:
    with on_stage("bash", "--norc", "--noprofile") as stage:
        stage.read_until(b"bash-")
        stage.send(b"python3 -I -S -c \"input('Really? ')\"\r")
        stage.read_until(b"\rReally? ")
        stage.until(lambda: look(stage, 1.0)["kind"] == "question", "the question")
        assert stage.foreground != stage.pid
        stage.send(b"yes\r")
        stage.until(lambda: look(stage, QUIET_S)["state"] == "at_prompt", "the shell")
