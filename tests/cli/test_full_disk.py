"""What the commands say while the disk of the home is full, and afterwards of a session that lost output to it."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from support.levers import namespace_argv
from support.world import World

TESTS = Path(__file__).resolve().parents[1]

HOST = f"""
import json, os, subprocess, sys
sys.path.insert(0, {str(TESTS)!r})
from pathlib import Path
from support.waiting import until
home = Path(os.environ["HOLDFAST_HOME"])
home.mkdir(mode=0o700)
subprocess.run(["mount", "-t", "tmpfs", "-o", "size=3m,mode=0700", "tmpfs", str(home)], check=True)
(home / "ballast").write_bytes(bytes(1 << 20))

def hold(*words):
    done = subprocess.run([sys.executable, "-m", "holdfast.cli", *words], capture_output=True, text=True)
    said[" ".join(words)] = [done.returncode, done.stdout, done.stderr]
    return done

def look():
    for words in ("ls -a", "ls -a --json", "status big", "status big --json", "doctor --json", "signals"):
        hold(*words.split())
    hold("gc", "--dry-run")
    print(json.dumps(said), flush=True)

said = {{}}
hold("start", "--name", "big", "--", f"seq 1 600000; read go < {{sys.argv[1]}}; exit 0")
printed = sum(len(str(n)) + 1 for n in range(1, 600_001))
until(lambda: json.loads(hold("status", "big", "--json").stdout)["ends"]["stdout"] == printed, what="the flood")
said.clear()
look()
with open(sys.argv[1], "w") as gate: gate.write("go\\n")
hold("wait", "big")
look()
(home / "ballast").unlink()
said.clear()
look()
print(json.dumps(os.path.getsize(next(home.glob("sessions/*/stdout.*")))), flush=True)
"""


@pytest.mark.namespaces
@pytest.mark.slow
def test_lost_output_shows_everywhere_and_the_full_disk_has_its_name(world: World) -> None:
    gate = world.root / "gate"
    os.mkfifo(gate)
    host = world.host(HOST, gate, prefix=namespace_argv("--mount"), env={"HOLDFAST_LOG_FREE_FLOOR": "512K"})
    running, ended, afterwards = (json.loads(host.line(40)) for _ in range(3))
    printed = sum(len(str(n)) + 1 for n in range(1, 600_001))
    lost = printed - json.loads(host.line())
    words = f"{lost / (1 << 20):.1f} MiB"
    for said, state in ((running, "running"), (ended, "exit 0"), (afterwards, "exit 0")):
        assert f"{state}, {words} lost" in said["ls -a"][1]
        assert f"output       incomplete: the disk refused {words} of it\n" in said["status big"][1]
        assert "output       complete" not in said["status big"][1]
        assert [each["metadata"]["lost_bytes"] for each in json.loads(said["ls -a --json"][1])] == [lost]
        assert json.loads(said["status big --json"][1])["metadata"]["lost_bytes"] == lost
    for said in (running, ended):
        findings = json.loads(said["doctor --json"][1])
        assert "locked" not in json.dumps(findings)
        space = next(each for each in findings if each["check"] == "free space")
        assert space["level"] == "problem"
        assert "the disk is full, " in space["text"]
        assert "free some space" in space["fix"]
        for each in findings:
            if each["check"] in ("home", "index", "signals") and each["level"] != "ok":
                assert "full" in each["text"] or "No space left" in each["text"]
                assert "free some space" in each["fix"]
        assert "locked" not in said["signals"][2]
    # A running session gives nothing back; a finished one does.
    assert "below log.free_floor, and no finished session holds them" in running["gc --dry-run"][2]
    assert (ended["gc --dry-run"][2], "would remove" in ended["gc --dry-run"][1]) == ("", True)
    assert not [each for each in json.loads(afterwards["doctor --json"][1]) if each["level"] == "problem"]
    assert afterwards["gc --dry-run"][2] == ""
    assert host.wait(30) == 0, host.errors()
