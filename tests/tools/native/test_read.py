"""`read`: what is new, a place, the end, a search; never consuming."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from support.agents import shown
from support.waiting import until

if TYPE_CHECKING:
    from support.agents import Agent, Agents
    from support.world import World


def body(text: str) -> list[str]:
    return text.splitlines()[1:]


def printed(agent: Agent, id: str, ending: str) -> None:
    """Until its output ends so."""
    until(lambda: shown(agent.call("read", id=id, since="0", raw=True)).endswith(ending), what=ending)


@pytest.mark.covers("native:7")
def test_new_output_is_shown_once_and_a_new_host_continues_there(agents: Agents, world: World) -> None:
    agent = agents("native")
    gate = world.gate()
    words = ["await", gate, "say", "one", "await", gate, "say", "two", "await", gate, "say", "three"]
    agent.call("run", command=world.probe("quiet", *words, "forever"), name="web", wait_s=0)
    gate.release()
    printed(agent, "web", "one")
    assert body(agent.call("read", id="web").text) == ["one"]
    again = agent.call("read", id="web")
    assert re.match(r"\[web \w+ running [\d.]+s, nothing new, cursor stdout:\d+\]\n", again.text)
    assert body(again.text) == ['next: wait(ids="web")']
    gate.release()
    printed(agent, "web", "two")
    successor = agents("native")
    assert body(successor.call("read", id="web").text) == ["two"]
    assert "nothing new" in successor.call("read", id="web").text
    gate.release()
    printed(successor, "web", "three")
    assert body(agent.call("read", id="web").text) == ["three"]
    agent.call("stop", ids="web", grace_s=0)


def test_a_place_and_the_end_move_nothing_that_was_not_shown(agents: Agents, world: World) -> None:
    agent = agents("native")
    gate = world.gate()
    command = world.probe("quiet", "await", gate, "lines", 9, "await", gate, "say", "last", "forever")
    agent.call("run", command=command, name="web", wait_s=0)
    gate.release()
    printed(agent, "web", "line 9")
    assert body(agent.call("read", id="web", tail=2).text) == ["line 8", "line 9"]
    assert body(agent.call("read", id="web", since="stdout:7", budget=200).text)[0] == "line 2"
    assert shown(agent.call("read", id="web")).startswith("line 1\n")
    gate.release()
    printed(agent, "web", "last")
    # All of it is shown: now it was seen.
    assert body(agent.call("read", id="web", tail=2).text) == ["line 9", "last"]
    assert "nothing new" in agent.call("read", id="web").text
    agent.call("stop", ids="web", grace_s=0)


def test_the_end_of_one_stream_leaves_the_other_unseen(agents: Agents, world: World) -> None:
    agent = agents("native")
    gate = world.gate()
    words = ["quiet", "await", gate, "out", "say", "out one", "err", "say", "err one", "forever"]
    agent.call("run", command=world.probe(*words), name="web", wait_s=0)
    gate.release()
    until(lambda: "err one" in agent.call("read", id="web", since="0").text)
    assert body(agent.call("read", id="web", tail=5, stream="stderr").text) == ["err one"]
    assert body(agent.call("read", id="web").text) == ["out one"]
    agent.call("stop", ids="web", grace_s=0)


def test_a_place_and_the_end_of_one_that_runs_name_where_to_read_on(agents: Agents, world: World) -> None:
    agent = agents("native")
    gate = world.gate()
    command = world.probe("quiet", "await", gate, "lines", 3, "err", "say", "oops", "await", gate, "exit", 0)
    agent.call("run", command=command, name="web", wait_s=0)
    gate.release()
    until(lambda: "oops" in agent.call("read", id="web", since="0").text)
    for place in ({"since": "0"}, {"tail": 1}):
        first = agent.call("read", id="web", **place).text.split("\n")[0]
        assert first.endswith(", cursor stdout:21,stderr:5]")
        first = agent.call("read", id="web", stream="stderr", **place).text.split("\n")[0]
        assert first.endswith(", cursor stderr:5]")
    gate.release()
    assert agent.call("wait", ids="web").data["reason"] == "exit"
    assert "cursor" not in agent.call("read", id="web", tail=1).text


def test_pages_follow_each_other_without_a_gap(agents: Agents) -> None:
    agent = agents("native")
    code = "i=0; while [ $i -lt 300 ]; do i=$((i+1)); echo $i a; echo $i b; done"
    id = agent.call("run", command=code).data["id"]
    since, seen = "0", []
    for _ in range(50):
        answer = agent.call("read", id=id, since=since, budget=500)
        assert len(answer.text) < 900
        seen += [line for line in body(answer.text) if line[0].isdigit()]
        left = answer.data.get("left_out")
        if not left:
            break
        assert left[0]["lines"] == 600 - len(seen)
        since = left[0]["since"]
    assert seen == [f"{n} {letter}" for n in range(1, 301) for letter in "ab"]


def test_pages_of_two_streams_follow_each_other_too(agents: Agents, world: World) -> None:
    agent = agents("native")
    turns = [word for n in range(60) for word in ("out", "say", f"o{n}", "err", "say", f"e{n}")]
    id = agent.call("run", command=world.probe("quiet", *turns)).data["id"]
    since, seen = "0", []
    for _ in range(50):
        answer = agent.call("read", id=id, since=since, budget=200, raw=True)
        left = answer.data.get("left_out")
        seen += body(answer.text)[: -1 if left else None]
        if not left:
            break
        since = left[0]["since"]
    assert seen == body(agent.call("read", id=id, since="0", budget=100_000, raw=True).text)
    assert sorted(line.split()[-1] for line in seen) == sorted(f"{way}{n}" for n in range(60) for way in "oe")
    assert all(line.startswith("(stderr) ") == ("e" in line.split()[-1]) for line in seen)


@pytest.mark.parametrize("others", [0, 3])
def test_a_line_that_is_cut_names_the_way_to_its_middle(agents: Agents, world: World, others: int) -> None:
    agent = agents("native")
    line = ",".join(f"{n}\u00e9" for n in range(5000))
    path = world.cwd / "long.txt"
    path.write_text("".join(f"short {'abc'[n]}\n" for n in range(others)) + line + "\n")
    answer = agent.call("run", command=f"cat {path}; exit 1")
    id, seen, cursors = answer.data["id"], "", set()
    for _ in range(50):
        text = max(body(answer.text), key=len)
        ahead, cut, _ = text.partition(" ...[")
        seen += ahead
        if not cut:
            break
        assert len(answer.text) < 8400
        step = re.search(
            r'^\.\.\. 1 line is cut here: read\(id="\w+", since="(stdout:\d+)"\)$', answer.text, re.MULTILINE
        )
        assert step is not None
        assert step[1] not in cursors
        cursors.add(step[1])
        answer = agent.call("read", id=id, since=step[1])
    assert seen == line


def test_a_line_that_is_longer_than_it_was_is_read_from_its_beginning(agents: Agents, world: World) -> None:
    agent = agents("native")
    path = world.cwd / "long.txt"
    path.write_bytes(b"\xff" * 9000 + b"x" * 3000)
    answer = agent.call("run", command=f"cat {path}; exit 1")
    assert body(answer.text)[-1].startswith("... 1 line is cut here: read(")
    assert 'since="stdout:0", budget=13000)' in body(answer.text)[-1]
    whole = agent.call("read", id=answer.data["id"], since="stdout:0", budget=13000)
    assert body(whole.text) == ["\ufffd" * 9000 + "x" * 3000]


def test_an_end_that_is_long_is_counted_too(agents: Agents, world: World) -> None:
    agent = agents("native")
    program = world.cwd / "program.py"
    program.write_text(
        "for n in range(12000): print(n, ''.join(chr(97 + int(digit)) for digit in str(n)) * 60)\n"
        "print('the end', end='')\n"
    )
    id = agent.call("run", command=["python3", str(program)], wait_s=30).data["id"]
    answer = agent.call("read", id=id, tail=9000, budget=2000)
    assert len(answer.text) < 2400
    shown = [line for line in body(answer.text) if not line.startswith("...")]
    assert shown[-1] == "the end"
    left = answer.data["left_out"][0]
    assert left["lines"] == 9000 - len(shown)
    there = agent.call("read", id=id, since=left["since"], budget=1000)
    assert body(there.text)[0].split()[0] == str(12_001 - 9000)
    few = agent.call("read", id=id, tail=3, budget=8000)
    assert [line.split()[0] for line in body(few.text)] == ["11998", "11999", "the"]


def test_the_truth_is_there_raw(agents: Agents) -> None:
    agent = agents("native")
    id = agent.call("run", command=r"printf '\033[31mred\033[0m  \r\nab\rc\n\n\n\nz\nz\nz\nz\nz\n'").data["id"]
    assert shown(agent.call("read", id=id, since="0")) == "red\ncb\n\nz (x5)"
    raw = shown(agent.call("read", id=id, since="0", raw=True))
    assert raw == "\\x1b[31mred\\x1b[0m  \\x0d\nab\\x0dc\n\n\n\nz\nz\nz\nz\nz"


def test_one_stream_alone(agents: Agents) -> None:
    agent = agents("native")
    id = agent.call("run", command="echo out; echo err >&2").data["id"]
    assert body(agent.call("read", id=id, since="0", stream="stderr").text) == ["err"]
    assert body(agent.call("read", id=id, tail=5, stream="stdout").text) == ["out"]


def test_what_the_log_dropped_is_said(agents: Agents, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    config = world.root / "config.toml"
    config.write_text('[log]\nsession_cap = "1MiB"\n')
    monkeypatch.setenv("HOLDFAST_CONFIG", str(config))
    agent = agents("native")
    answer = agent.call("run", command="yes abcdefghi | head -c 30000000", wait_s=60)
    assert re.search(
        r"^\.\.\. [\d.]+ MB before this were dropped: the log keeps only the newest output$", answer.text, re.MULTILINE
    )


@pytest.mark.covers("native:8")
def test_a_search_over_a_hundred_megabytes_finds_the_newest_with_context(
    agents: Agents, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = world.root / "config.toml"
    config.write_text('[log]\nsession_cap = "200MiB"\n')
    monkeypatch.setenv("HOLDFAST_CONFIG", str(config))
    agent = agents("native")
    program = world.cwd / "program.py"
    program.write_text(
        "import sys\n"
        "block = ''.join(f'some line {n} of a long log that goes on and on\\n' for n in range(20000))\n"
        "for part in range(110):\n"
        "    sys.stdout.write(block)\n"
        "    if part % 10 == 5: sys.stdout.write(f'before {part}\\nneedle {part}\\nafter {part}\\n')\n"
    )
    ran = agent.call("run", command=["python3", str(program)], wait_s=60)
    assert int(re.findall(r"stdout:(\d+)", ran.data["cursor"])[0]) > 100_000_000
    found = agent.call("read", id=ran.data["id"], search=r"^needle \d+", budget=600)
    assert len(found.text) <= 1000
    lines = body(found.text)
    assert lines[2:5] == ["  before 105", "> needle 105", "  after 105"]
    numbers = [int(line.split()[-1]) for line in lines if line.startswith("> ")]
    assert numbers == sorted(numbers, reverse=True)
    assert len(numbers) < 11
    older = re.search(r'^\.\.\. older matches at stdout:\d+.*; read\(.*since="(stdout:\d+)"', found.text, re.MULTILINE)
    assert older is not None
    there = agent.call("read", id=ran.data["id"], since=older[1], stream="stdout", budget=200)
    assert body(there.text)[0] == f"needle {numbers[-1] - 10}"


@pytest.mark.covers("native:8")
@pytest.mark.parametrize("count", [40, 41, 60])
def test_matches_beyond_the_limit_are_counted(agents: Agents, count: int) -> None:
    agent = agents("native")
    id = agent.call("run", command=f"seq -f 'hit %g' {count}").data["id"]
    answer = agent.call("read", id=id, search="^hit", context=0)
    assert len(answer.data["matches"]) == 40
    older = re.search(r'^\.\.\. older matches at stdout:\d+.*; read\(.*since="(stdout:\d+)"', answer.text, re.MULTILINE)
    assert (older is not None) == (count > 40)
    if older is not None:
        there = agent.call("read", id=id, since=older[1], stream="stdout", raw=True)
        assert body(there.text)[0] == f"hit {count - 40}"


@pytest.mark.covers("native:8")
@pytest.mark.parametrize("budget", [200, 8000])
def test_a_match_among_long_lines_fits_too(agents: Agents, world: World, budget: int) -> None:
    agent = agents("native")
    program = world.cwd / "program.py"
    program.write_text("for n in range(101): print('needle' if n == 50 else n, 'x' * 5000)\n")
    id = agent.call("run", command=["python3", str(program)]).data["id"]
    answer = agent.call("read", id=id, search="^needle", context=50, budget=budget)
    found = body(answer.text)
    around = [line for line in found if line.startswith("  ")]
    assert sum(len(line) + 1 for line in found if line.startswith(("  ", "> "))) <= budget
    assert any(line.startswith("> needle xxx") for line in found)
    assert f"... {100 - len(around)} lines around it left out" in answer.text
    if budget == 8000:
        assert {line.split()[0] for line in around} >= {"49", "51"}


def test_a_search_without_a_match_says_what_was_searched(agents: Agents) -> None:
    agent = agents("native")
    id = agent.call("run", command="echo Hello").data["id"]
    answer = agent.call("read", id=id, search="hello")
    assert not answer.error
    assert "no match" in answer.text
    assert f'read(id="{id}", search="(?i)hello") ignores case' in answer.text
    assert "> Hello" in agent.call("read", id=id, search="(?i)hello").text


@pytest.mark.covers("found:1")
def test_the_cursor_in_the_data_is_the_one_in_the_text(direct: Agents, world: World) -> None:
    """Also of one stream alone, and where the text stops before the end: reading on from it misses nothing."""
    agent = direct("native")
    command = "seq 1000 1999; echo err >&2; exec sleep 600"
    agent.call("run", command=command, name="web", wait_s=0)
    session = world.open().get("web")
    assert session.wait(match="^1999$", timeout=30).reason == "match"
    assert session.wait(match="^err$", timeout=30).reason == "match"
    part = agent.call("read", id="web", since="0", stream="stdout", budget=500, raw=True)
    (again,) = re.findall(r'since="([^"]+)"', part.text)
    assert part.data["cursor"] == again
    rest = agent.call("read", id="web", since=again, stream="stdout", budget=100_000, raw=True)
    assert re.findall(r"\d{4}", part.data["output"])[-1] == str(int(rest.data["output"][:4]) - 1)
    for answer in (rest, agent.call("read", id="web", tail=3), agent.call("read", id="web", tail=3, stream="stderr")):
        (cursor,) = re.findall(r", cursor ([\w:,]+)\]", answer.text)
        assert answer.data["cursor"] == cursor
    assert rest.data["cursor"] == "stdout:5000"
    agent.call("stop", ids=["web"], grace_s=0)
