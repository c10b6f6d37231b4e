"""In CI a test whose program is missing fails: only what another job has may skip."""

from __future__ import annotations

import pytest

from support.small_suite import run
from support.world import World

CI = {"CI": "true"}
# Nothing is found on it, but the interpreter, which is named in full.
NO_PROGRAMS = {"PATH": "/nowhere"}


@pytest.mark.covers("found:35")
def test_a_missing_program_skips_here_and_fails_in_ci(world: World) -> None:
    body = """
    @pytest.mark.needs("podman")
    def test_podman(): pass
    @pytest.mark.needs("sshd")
    def test_ssh(): pass
    @pytest.mark.needs("tmux")
    def test_tmux(): pass
    def test_by_call(): pytest.skip("no client here")
    @pytest.mark.skipif(True, reason="no package there")
    def test_by_mark(): pass
    def test_by_import(): pytest.importorskip("holdfast.no_such_module", reason="no such module")
    @pytest.mark.needs("root")
    @pytest.mark.needs("non-root")
    def test_of_another_job(): pass
    """
    assert "7 skipped" in run(world, body, env=NO_PROGRAMS)
    strict = run(world, body, env={**NO_PROGRAMS, **CI})
    assert "2 failed, 1 skipped, 4 errors" in strict, strict
    for lever in ("podman", "sshd", "tmux"):
        assert f"lever {lever} is missing: " in strict
    for reason in ("no client here", "no package there", "no such module"):
        assert f"skipped, which --strict-env does not allow: {reason}" in strict


@pytest.mark.covers("found:35")
def test_a_module_that_skips_as_a_whole_fails_in_ci(world: World) -> None:
    body = "pytest.skip('no client for all of these', allow_module_level=True)"
    assert "does not allow: no client for all of these" in run(world, body, env=CI)
