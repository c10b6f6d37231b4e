"""IDN-01: the recorded pid belongs to a stranger by now."""

from __future__ import annotations

import json
from typing import Any

import pytest

from support.bystander import Bystanders
from support.faults import sweep_up
from support.levers import PID_NAMESPACE, STRANGER
from support.promised import Beside
from support.world import World

INSIDE = (
    STRANGER
    + """
import json, sys
import holdfast

def facts(pid):
    with open(f"/proc/{pid}/stat") as file:
        return file.read().rpartition(")")[2].split()

def told(hf, session, other):
    seen = hf.get(session)
    try:
        stopped = hf.get(session).stop(grace=0)
        error = None
    except holdfast.HoldfastError as problem:
        stopped, error = None, problem
    answer = {
        "state": seen.state,
        "evidence": seen.metadata["evidence"],
        "cause": seen.exit and seen.exit.cause,
        "found": stopped and stopped.found,
        "error": error and error.to_json(),
        "stranger": other.poll(),
    }
    other.kill()
    other.wait()
    print(json.dumps(answer), flush=True)
"""
)

COMMAND_OR_RUNNER = (
    INSIDE
    + """
hf = holdfast.open()
session = hf.start(["sleep", "600"])
pids = {"command": session.pid, "runner": session.runner_pid}
launcher = int(facts(session.runner_pid)[1])
end(session.runner_pid)
end(session.pid)
if launcher != os.getpid():
    # A spare that is forked while a pid is asked for would get it, and keep it.
    os.kill(launcher, signal.SIGSTOP)
    while facts(launcher)[0] != "T":
        pass
told(hf, session.id, stranger(pids[sys.argv[1]]))
"""
)

OWNER = (
    INSIDE
    + """
code = "import holdfast; print(holdfast.open().start(['sleep', '600'], lifetime='owner').id, flush=True); input()"
owner = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
hf = holdfast.open()
session = hf.get(owner.stdout.readline().strip())
last_tick = start(owner.pid)
owner.kill()
owner.wait()
other = stranger(owner.pid)
session.wait(exit=True, timeout=30)
told(hf, session.id, other)
"""
)


def inside(world: World, code: str, *words: str) -> dict[str, Any]:
    host = world.host(code, *words, prefix=PID_NAMESPACE)
    line = host.line()
    assert line, host.errors()
    assert host.wait(30) == 0, host.errors()
    # The namespace took everybody in it along; what they left is nobody's.
    sweep_up(world, world.open())
    answer: dict[str, Any] = json.loads(line)
    return answer


@pytest.mark.covers("IDN-01")
@pytest.mark.needs("namespaces")
def test_idn_01_a_command_whose_pid_was_reused_is_lost_and_the_new_process_survives(
    world: World, without: str, bystander: Bystanders, beside: Beside
) -> None:
    told = inside(world, COMMAND_OR_RUNNER, "command")
    assert (told["state"], told["cause"]) == ("lost", "lost")
    assert "another process" in told["evidence"]
    assert told["error"]["code"] == "identity-mismatch"
    assert told["error"]["facts"]["part"] == "command start"
    assert told["error"]["fix"]
    assert told["stranger"] is None
    beside.unharmed()


@pytest.mark.covers("IDN-01")
@pytest.mark.needs("namespaces")
def test_idn_01_a_runner_whose_pid_was_given_again_is_not_taken_for_alive(
    world: World, without: str, bystander: Bystanders, beside: Beside
) -> None:
    told = inside(world, COMMAND_OR_RUNNER, "runner")
    assert (told["state"], told["cause"]) == ("lost", "lost")
    # A spare of the launcher may have got the command's pid meanwhile: then that is said, and nothing else done.
    assert told["found"] == [] or told["error"]["code"] == "identity-mismatch"
    assert told["stranger"] is None
    beside.unharmed()


@pytest.mark.covers("IDN-01")
@pytest.mark.needs("namespaces")
def test_idn_01_an_owner_whose_pid_was_given_again_does_not_keep_its_session_alive(
    world: World, without: str, bystander: Bystanders, beside: Beside
) -> None:
    told = inside(world, OWNER)
    assert (told["state"], told["cause"]) == ("exited", "owner_gone")
    assert told["stranger"] is None
    beside.unharmed()
