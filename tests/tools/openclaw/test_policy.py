"""What `exec` refuses to run: without a policy hook only the allow-list and plain `security: full` permit anything."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from holdfast.errors import BadArgument
from holdfast.tools.openclaw.settings import Allow, AllowList, Deny, Request, Settings

if TYPE_CHECKING:
    from support.agents import Agents
    from support.world import World

STRICT: list[dict[str, str]] = [
    {"ask": "on-miss"},
    {"ask": "always"},
    {"security": "allowlist"},
    {"security": "allowlist", "ask": "on-miss"},
    {"security": "allowlist", "ask": "always"},
]


def ran(world: World) -> list[str]:
    return sorted(path.name for path in world.cwd.iterdir())


@pytest.mark.covers("found:3")
@pytest.mark.parametrize("empty", [{}, {"allowlist": []}], ids=["none", "empty-list"])
def test_a_stricter_request_without_a_hook_is_refused_and_runs_nothing(
    direct: Agents, world: World, empty: dict[str, Any]
) -> None:
    plain = direct("openclaw", exec=empty)
    for strict in STRICT:
        as_setting = direct("openclaw", exec={**strict, **empty}).call("exec", command="touch ran")
        as_parameter = plain.call("exec", command="touch ran", **strict)
        for answer in (as_setting, as_parameter):
            assert (answer.data["status"], answer.error) == ("approval-unavailable", True)
            assert answer.data["reason"] in answer.text
            assert "Nothing has run." in answer.text
    assert ran(world) == []
    assert plain.call("process", action="list").data["sessions"] == []


@pytest.mark.covers("found:3")
def test_a_strict_parameter_is_refused_over_mcp_too(agents: Agents, world: World) -> None:
    agent = agents("openclaw")
    for strict in ({"ask": "always"}, {"security": "allowlist"}, {"elevated": True}):
        answer = agent.call("exec", command="touch ran", **strict)
        assert (answer.data["status"], answer.error) == ("approval-unavailable", True)
    assert ran(world) == []


@pytest.mark.covers("found:3")
def test_elevated_runs_only_when_a_hook_permits_it(direct: Agents, world: World) -> None:
    refused = direct("openclaw").call("exec", command="touch ran", elevated=True)
    assert (refused.data["status"], "elevated" in refused.text) == ("approval-unavailable", True)
    listed = direct("openclaw", exec={"security": "allowlist", "allowlist": ["touch"]})
    assert listed.call("exec", command="touch ran", elevated=True).data["status"] == "approval-unavailable"

    def decide(request: Request) -> Any:
        return Allow() if request.elevated and "permitted" in request.command else Deny("not this one")

    hooked = direct("openclaw", policy=decide)
    assert hooked.call("exec", command="touch other", elevated=True).text == "not this one"
    assert ran(world) == []
    assert hooked.call("exec", command="touch permitted", elevated=True).data["status"] == "completed"
    assert ran(world) == ["permitted"]


@pytest.mark.covers("found:3")
def test_a_hook_decides_what_is_strict(direct: Agents, world: World) -> None:
    def decide(request: Request) -> Any:
        return Allow() if request.command == "touch allowed" else Deny("no")

    agent = direct("openclaw", policy=decide)
    for strict in STRICT:
        assert agent.call("exec", command="touch refused", **strict).text == "no"
        assert ran(world) == []
        assert agent.call("exec", command="touch allowed", **strict).data["status"] == "completed"
        (world.cwd / "allowed").unlink()


@pytest.mark.covers("found:3")
def test_an_allow_list_decides_by_itself(direct: Agents, world: World) -> None:
    agent = direct("openclaw", exec={"security": "allowlist", "allowlist": ["touch", {"pattern": "*/echo"}]})
    assert agent.call("exec", command="touch here && echo 'a; b' | echo c").data["status"] == "completed"
    assert ran(world) == ["here"]
    missed = agent.call("exec", command="touch there; rm here")
    assert (missed.data["status"], missed.data["error"], missed.error) == ("failed", "not-allowed", True)
    asked = agent.call("exec", command="touch there; rm here", ask="on-miss")
    assert asked.data["status"] == "approval-unavailable"
    assert agent.call("exec", command="touch there", ask="always").data["status"] == "approval-unavailable"
    assert ran(world) == ["here"]
    assert agent.call("exec", command="touch there", ask="on-miss").data["status"] == "completed"
    both = direct("openclaw", policy=lambda _: Deny("asked"), exec={"ask": "on-miss", "allowlist": ["touch"]})
    assert both.call("exec", command="touch third").data["status"] == "completed"
    assert both.call("exec", command="rm third").text == "asked"
    assert ran(world) == ["here", "there", "third"]


@pytest.mark.parametrize("given", ["git", [1], [""], [{"path": "git"}]])
def test_an_allow_list_of_something_else_is_refused(given: Any) -> None:
    with pytest.raises(BadArgument, match="allowlist"):
        Settings({"allowlist": given}, {})


@pytest.mark.parametrize(
    "command",
    [
        *("echo $(rm x)", "echo `rm x`", 'echo "$(rm x)"', 'echo "`rm x`"', "echo <(rm x)", "echo > x", "echo < x"),
        *(
            "echo a\nrm x",
            "echo a & rm x",
            "(rm x)",
            "{ rm x; }",
            "echo a |& rm x",
            "echo a;;rm x",
            "echo a && ",
            "; echo",
        ),
        *("A=echo rm x", "A=bin/echo rm x", "'echo' a", "e\\cho a", "rm x", "echo a || rm x", "echo a;rm x", "echo 'a"),
        *('echo "a', "echo a\\", "~/echo a", "ech? a", "$A", "", " ", "echo $'a'", "bin/../rm x", "echo a\rrm x"),
    ],
)
def test_a_line_that_may_run_something_else_is_not_on_the_list(command: str, tmp_path: Path) -> None:
    allowed = AllowList(["echo", f"{tmp_path}/bin/*"])
    assert not allowed.has(command, str(tmp_path), "/usr/bin:/bin")


@pytest.mark.parametrize(
    "pattern, command, path",
    [
        ("git", "git log --format='%h; %s' \"a | b\" c\\;d", None),
        ("*/bin/sh", "sh -c true", "/usr/bin:/bin"),
        ("/opt/x/*", "/opt/x/tool *.py", None),
        ("/opt/x/*", "../x/tool", None),
    ],
)
def test_a_line_of_listed_programs_is_on_the_list(pattern: str, command: str, path: str | None) -> None:
    assert AllowList([pattern]).has(command, "/opt/y", path)
    assert not AllowList([pattern + "x"]).has(command, "/opt/y", path)
