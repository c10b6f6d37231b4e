"""`run`: results, what runs on, and what is shown of a lot of output."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from support.agents import shown

if TYPE_CHECKING:
    from support.agents import Agents
    from support.world import World

LEFT_OUT = re.compile(r"^\.\.\. ([\d,]+) lines?, ([\d.]+ \w+) left out; read\((.*?)\) or read\(", re.MULTILINE)


def arguments(text: str) -> dict[str, str]:
    """Of a call that was printed."""
    return dict(re.findall(r'(\w+)="([^"]*)"', text))


def script(world: World, code: str) -> list[str]:
    path = world.cwd / "program.py"
    path.write_text(code)
    return ["python3", str(path)]


@pytest.mark.covers("native:1")
def test_a_command_that_ends_gives_its_status_and_output_and_nothing_else(agents: Agents) -> None:
    answer = agents("native").call("run", command="echo hi")
    assert re.fullmatch(r"\[\w{9} exit 0 after [\d.]+s\]\nhi", answer.text)
    assert len(answer.text) - len("hi") < 120
    assert not answer.error
    assert answer.data["exit"]["code"] == 0
    assert shown(answer) == "hi"


def test_the_output_is_in_the_data_too(agents: Agents) -> None:
    answer = agents("native").call("run", command="echo hi")
    assert answer.data["output"] == "hi"


@pytest.mark.covers("native:2")
def test_what_runs_on_is_waited_for_by_its_id_and_an_aborted_call_changes_nothing(direct: Agents, world: World) -> None:
    agent = direct("native")
    gate = world.gate()
    answer = agent.call("run", command=world.probe("await", gate, "exit", 3), wait_s=0.2)
    id = answer.data["id"]
    assert re.match(rf"\[{id} running [\d.]+s", answer.text)
    assert answer.text.endswith(f'next: wait(ids="{id}")')

    async def aborted() -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(agent.tools.call("wait", {"ids": id}), 0.2)

    agent.run(aborted())
    assert agent.call("read", id=id).data["state"] == "running"
    gate.release()
    ended = agent.call("wait", ids=id)
    assert ended.data["reason"] == "exit"
    assert re.match(rf"\[{id} exit 3 after", ended.text)


def test_an_aborted_run_never_kills(direct: Agents, world: World) -> None:
    agent = direct("native")

    async def aborted() -> None:
        call = asyncio.ensure_future(agent.tools.call("run", {"command": world.probe("forever"), "name": "web"}))
        while [each.state for each in await agent.hf.sessions(owner="agent-7")] != ["running"]:
            done, _ = await asyncio.wait([call], timeout=0.01)
            assert not done
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call

    agent.run(aborted())
    assert agent.call("read", id="web").data["state"] == "running"
    agent.call("stop", ids="web", grace_s=0)


def big(world: World, lines: int, code: int = 0) -> list[str]:
    return script(
        world,
        "import sys\n"
        "words = [f'{n:x}'.translate(str.maketrans('0123456789', 'ghijklmnop')) for n in range(4096)]\n"
        f"for part in range(0, {lines}, 5000):\n"
        "    sys.stdout.write(''.join(\n"
        "        f'{n} ' + words[n % 4096] * 12 + '\\n' for n in range(part, part + 5000)))\n"
        f"sys.exit({code})\n",
    )


@pytest.mark.covers("native:3")
@pytest.mark.parametrize("code", [0, 1])
def test_fifty_megabytes_are_two_ends_with_exact_counts_and_the_way_to_the_rest(
    agents: Agents, world: World, code: int
) -> None:
    agent = agents("native")
    lines = 1_200_000
    answer = agent.call("run", command=big(world, lines, code), wait_s=60)
    assert answer.data["exit"]["code"] == code
    assert sum(map(int, re.findall(r":(\d+)", answer.data["cursor"]))) > 50_000_000
    assert len(answer.text) <= 8400
    assert len(answer.text) > (7000 if code else 1500)
    found = LEFT_OUT.search(answer.text)
    assert found is not None
    shown = [int(line.split()[0]) for line in answer.text.splitlines()[1:] if line[0].isdigit()]
    head = [number for number in shown if number < lines // 2]
    tail = [number for number in shown if number >= lines // 2]
    assert head == list(range(len(head)))
    assert tail == list(range(lines - len(tail), lines))
    assert int(found[1].replace(",", "")) == lines - len(shown)
    assert answer.data["left_out"][0]["lines"] == lines - len(shown)
    told = sum(len(line) + 1 for line in answer.text.splitlines()[1:] if line[0].isdigit())
    assert answer.data["left_out"][0]["bytes"] == sum(map(int, re.findall(r":(\d+)", answer.data["cursor"]))) - told
    again = agent.call("read", **arguments(found[3]))
    assert again.text.splitlines()[1].split()[0] == str(len(head))


@pytest.mark.covers("native:4")
@pytest.mark.parametrize("tty", [False, True])
def test_twenty_thousand_rewrites_are_their_last_state(agents: Agents, world: World, tty: bool) -> None:
    code = (
        "import sys\n"
        "for n in range(20001):\n"
        "    bar = '#' * (n * 40 // 20000)\n"
        "    sys.stdout.write(f'\\rDownloading [{bar:<40}] {n}/20000 {n * 100 // 20000}%')\n"
        "print()\n"
        "print('Successfully installed thing-1.0')\n"
    )
    answer = agents("native").call("run", command=script(world, code), tty=tty, wait_s=30)
    assert len(answer.text) < 1500
    assert len(answer.text.splitlines()) == 3
    assert f"[{'#' * 40}] 20000/20000 100%" in answer.text
    assert answer.text.endswith("Successfully installed thing-1.0")


@pytest.mark.covers("native:5")
def test_ten_thousand_lines_that_differ_in_a_number_are_a_handful(agents: Agents, world: World) -> None:
    agent = agents("native")
    for template in ("Compiling unit {n} of 10000 in the long tree of sources that this build has, as it says", "{n}"):
        code = f"for n in range(10000): print({template!r}.format(n=n))"
        answer = agent.call("run", command=script(world, code))
        body = answer.text.splitlines()[1:]
        assert len(body) <= 5
        assert sum(int(count.replace(",", "")) for count in re.findall(r"\(x([\d,]+)", answer.text)) == 10_000


@pytest.mark.covers("native:6")
@pytest.mark.parametrize("passed_after", [0, 4000])
def test_a_failing_test_run_shows_its_summary_and_assertion_stderr_first(
    agents: Agents, world: World, passed_after: int
) -> None:
    code = (
        "import sys\n"
        "def passed(n): print('tests/', 'abcdefghij'[n % 10] * (n % 13), '.py::test_', n, ' PASSED', sep='')\n"
        "for n in range(4000): passed(n)\n"
        "print('    def test_sum():')\n"
        "print('>       assert add(1, 2) == 4')\n"
        "print('E       assert 3 == 4')\n"
        f"for n in range({passed_after}): passed(n)\n"
        "print('FAILED tests/test_sum.py::test_sum - assert 3 == 4')\n"
        "print('1 failed, 8000 passed')\n"
        "sys.stdout.flush()\n"
        "print('coverage: no data was written', file=sys.stderr)\n"
        "sys.exit(1)\n"
    )
    answer = agents("native").call("run", command=script(world, code))
    lines = answer.text.splitlines()
    assert len(answer.text) <= 8400
    assert lines[1:4] == ["stderr:", "coverage: no data was written", "stdout:"]
    assert "E       assert 3 == 4" in lines
    assert lines[-2:] == ["FAILED tests/test_sum.py::test_sum - assert 3 == 4", "1 failed, 8000 passed"]


def test_a_short_column_of_numbers_is_data(agents: Agents) -> None:
    answer = agents("native").call("run", command="seq 100")
    assert shown(answer) == "\n".join(map(str, range(1, 101)))


def test_both_streams_of_a_success_come_in_order_and_are_distinguished(agents: Agents, world: World) -> None:
    command = f"echo one; {world.until_logged('one')}; echo two >&2; {world.until_logged('two')}; echo three"
    answer = agents("native").call("run", command=command)
    assert answer.text.splitlines()[1:] == ["one", "(stderr) two", "three"]


def test_one_stream_needs_no_mark(agents: Agents) -> None:
    assert agents("native").call("run", command="echo oops >&2; exit 2").text.splitlines()[1:] == ["oops"]


@pytest.mark.covers("native:12")
def test_a_key_stands_for_one_session_until_it_is_replaced(agents: Agents, world: World) -> None:
    agent = agents("native")
    command = world.probe("forever")
    first = agent.call("run", command=command, key="dev", wait_s=0.2)
    again = agent.call("run", command=command, key="dev", wait_s=0.2)
    assert again.data["id"] == first.data["id"]
    assert "was already running" in again.text
    assert "already" not in first.text
    assert len(agent.call("list").data["sessions"]) == 1
    newer = agent.call("run", command=command, key="dev", replace=True, wait_s=0.2)
    assert newer.data["id"] != first.data["id"]
    assert f"replaces {first.data['id']}" in newer.text
    assert [each["id"] for each in agent.call("list").data["sessions"]] == [newer.data["id"]]
    assert agent.call("signals").data["signals"] == []
    agent.call("stop", all=True, grace_s=0)


def test_a_key_whose_holder_was_started_without_ready_is_not_waited_for(agents: Agents, world: World) -> None:
    agent = agents("native")
    first = agent.call("run", command=world.probe("forever"), key="dev", wait_s=0)
    again = agent.call("run", command=world.probe("forever"), key="dev", ready="line:up", wait_s=60)
    assert not again.error
    assert again.data["id"] == first.data["id"]
    said = "was already running, started without ready, so it is unknown whether it is ready"
    assert said in again.text
    assert "next:" not in again.text
    port = agent.call("run", command=world.probe("forever"), key="dev", ready="port:3999", wait_s=60)
    assert said in port.text
    assert port.text.endswith(f'next: wait(ids="{first.data["id"]}", until="port", pattern="3999")')
    agent.call("stop", all=True, grace_s=0)


def test_a_server_answers_when_it_is_ready_and_is_not_announced_again(agents: Agents, world: World) -> None:
    agent = agents("native")
    answer = agent.call("run", command=world.probe("say", "up now", "forever"), ready="line:^up", name="web", wait_s=20)
    assert "ready on line" in answer.text
    assert answer.text.splitlines()[1:] == ["ready", "up now"]
    assert agent.call("signals").data["signals"] == []
    agent.call("stop", ids="web", grace_s=0)


@pytest.mark.parametrize("ready", [r"/api/v\d+ up", "/api/v2 up", r"/api/v\d up/", "/API/V2 UP/i"])
def test_a_line_that_begins_with_a_slash_is_a_regex_too(agents: Agents, world: World, ready: str) -> None:
    agent = agents("native")
    command = world.probe("say", "/api/v2 up", "forever")
    answer = agent.call("run", command=command, ready=f"line:{ready}", name="web", wait_s=20)
    assert "ready on line" in answer.text
    agent.call("stop", ids="web", grace_s=0)


def test_a_line_without_a_pattern_is_refused(agents: Agents, world: World) -> None:
    answer = agents("native").call("run", command=world.probe("forever"), ready="line:")
    assert answer.error
    assert answer.text.startswith("ready: ")


def test_one_that_is_not_ready_says_how_to_wait_for_it(agents: Agents, world: World) -> None:
    agent = agents("native")
    answer = agent.call("run", command=world.probe("forever"), ready="line:never", name="web", wait_s=0.2)
    assert "not ready yet" in answer.text
    assert answer.text.endswith('next: wait(ids="web", until="ready")')
    agent.call("stop", ids="web", grace_s=0)


def test_options_reach_the_command(agents: Agents, world: World) -> None:
    agent = agents("native")
    directory = world.root / "elsewhere"
    Path(directory).mkdir()
    answer = agent.call("run", command="echo $A; pwd", env=["A=b c"], cwd=str(directory))
    assert shown(answer) == f"b c\n{directory}"
    assert shown(agent.call("run", command="echo $A", env={"A": "x"})) == "x"
    limited = agent.call("run", command=world.probe("forever"), timeout_s=0.3)
    assert "ended by timeout_s" in limited.text
    idle = agent.call("run", command=world.probe("forever"), idle_timeout_s="0.3")
    assert "ended by idle_timeout_s" in idle.text
