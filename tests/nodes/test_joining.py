"""Invitations: two commands on each machine, and what is refused."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import re
import signal
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from support.fleets import leave
from support.serving import START_BOUND_S, new_certificate
from support.waiting import until, wait_gone

if TYPE_CHECKING:
    from support.fleets import Fleet
    from support.world import World

FINGERPRINT = re.compile(r"fingerprint ((?:[0-9a-f]{4}-){5}[0-9a-f]{4})")


def test_an_invited_machine_joins_and_both_sides_print_the_same_fingerprint(fleet: Fleet) -> None:
    machine = fleet.machine("build-box")
    inviting, code = fleet.invite("build-box")
    joined = machine.hold("node", "join", code)
    there = FINGERPRINT.search(joined.stdout)
    here = FINGERPRINT.search(inviting.line())
    assert there
    assert here
    assert there[1] == here[1]
    assert inviting.wait() == 0
    assert machine.file("key").stat().st_mode & 0o777 == 0o600
    machine.serve()
    fleet.until_connected("build-box")
    assert fleet.listed()["build-box"]["fingerprint"] == here[1]


@pytest.mark.covers("nodes:11")
def test_an_expired_a_used_and_a_tampered_invitation_are_refused_and_leave_nothing(fleet: Fleet) -> None:
    used = fleet.join("first")
    before = {path.name: path.read_bytes() for path in used.file("").iterdir()}
    machine = fleet.machine("second")
    inviting, code = fleet.invite("second")
    coded = code.removeprefix("hf.")
    raw = base64.urlsafe_b64decode(coded + "=" * (-len(coded) % 4))
    changed = bytearray(raw)
    changed[len(raw) // 2] ^= 1
    invitation = json.loads(raw[6:])

    tampered = machine.hold("node", "join", "hf." + base64.urlsafe_b64encode(changed).decode(), check=False)
    assert tampered.returncode == 2
    assert "incomplete or was changed" in tampered.stderr

    # With its checksum put right it is another secret, which the view does not know.
    forged = machine.program("node", "join", _coded({**invitation, "secret": "0" * 64}), pace=0.3)
    assert forged.wait() == 2
    assert "no answer" in forged.errors()

    expired = machine.hold("node", "join", _coded({**invitation, "until_s": 1.0}), check=False)
    assert expired.returncode == 2
    assert "it has expired" in expired.stderr

    machine.hold("node", "join", code)
    assert inviting.wait() == 0
    again = fleet.machine("third").hold("node", "join", code, check=False)
    assert again.returncode == 2
    assert "used already" in again.stderr
    withdrawn, late = fleet.invite("late")
    withdrawn.kill()
    logins = json.loads(fleet.view.file("fabric.json").read_text())["logins"]
    assert any(each.get("node") == "late" for each in logins.values())
    _expire(fleet, "late")
    until(lambda: not _left(fleet, "late"), what="the end of the login of an invitation")
    refused = fleet.machine("fifth").program("node", "join", late, pace=0.3)
    assert refused.wait() == 2
    assert "refuses our login" in refused.errors()
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        withdrawn, _ = fleet.invite("ended")
        until(lambda: _left(fleet, "ended") == {"fabric.json", "nats.conf"}, what="the login")
        withdrawn.signal(number)
        assert withdrawn.wait() == 130
        assert "fabric.json" not in _left(fleet, "ended")
        until(lambda: not _left(fleet, "ended"), what="the end of the login of an invitation")
    # One that expires while no fabric runs goes when the next one starts.
    withdrawn, _ = fleet.invite("unseen")
    withdrawn.kill()
    withdrawn.wait()
    leave(fleet.fabric)
    _expire(fleet, "unseen")
    assert "fabric.json" in _left(fleet, "unseen")
    fleet.start_fabric()
    assert not _left(fleet, "unseen")
    assert {path.name: path.read_bytes() for path in used.file("").iterdir()} == before


@pytest.mark.covers("nodes:9")
def test_the_login_of_a_node_may_hear_and_ask_nothing_of_others(fleet: Fleet) -> None:
    """Against the real server, with the login that the node has."""
    import nats

    machine = fleet.join("a")
    fleet.join("b")
    (joined,) = json.loads(machine.file("joined.json").read_text())["views"].values()
    address = joined["fabric"]
    fleet_id = address["fleet"]
    view = json.loads(fleet.view.file("fabric.json").read_text())["view"]

    async def tried() -> list[str]:
        refused: list[str] = []

        async def complained(problem: Exception) -> None:
            if "permissions violation" in str(problem).lower():
                refused.append(str(problem))

        client = await nats.connect(
            address["url"], user=address["user"], password=address["password"], error_cb=complained
        )
        for subject in (f"hf1.{fleet_id}.n.b.>", f"hf1.{fleet_id}.v.{view}.>", f"hf1.{fleet_id}.>", ">"):
            await client.subscribe(subject)
            await client.flush()
        for subject in (f"hf1.{fleet_id}.n.b.x", f"hf1.{fleet_id}.n.a.x", "other"):
            await client.publish(subject, b"x")
            await client.flush()
        # The server's answer to each of the seven.
        async with asyncio.timeout(START_BOUND_S):
            while len(refused) < 7:
                await client.flush()
        await client.subscribe(f"hf1.{fleet_id}.n.a.>")
        await client.publish(f"hf1.{fleet_id}.v.{view}.x", b"x")
        await client.flush()
        await client.flush()
        assert len(refused) == 7
        await client.close()
        return refused

    refused = asyncio.run(tried())
    assert len([each for each in refused if "subscription" in each.lower()]) == 4
    assert len([each for each in refused if "publish" in each.lower()]) == 3


def test_hold_fabric_and_its_server_end_together(fleet: Fleet) -> None:
    def server() -> int:
        path = Path(f"/proc/{fleet.fabric.pid}/task/{fleet.fabric.pid}/children")
        (child,) = path.read_text().split()
        return int(child)

    child = server()
    leave(fleet.fabric)
    assert (fleet.fabric.returncode, fleet.fabric.errors()) == (0, "")
    wait_gone(child)
    fleet.start_fabric()
    child = server()
    fleet.fabric.signal(signal.SIGKILL)
    wait_gone(child)
    fleet.start_fabric()
    os.kill(server(), signal.SIGTERM)
    assert fleet.fabric.wait() != 0
    assert "nats-server ended" in fleet.fabric.errors()


def test_hold_fabric_binds_to_ipv6_and_refuses_an_address_without_a_name(world: World, fleet: Fleet) -> None:
    certificate, key = new_certificate(world.root)
    for address in ("0.0.0.0", "::"):
        words = ("fabric", "--bind", address, "--tls-cert", certificate, "--tls-key", key)
        refused = fleet.machine(f"any-{len(address)}").hold(*words, check=False)
        assert (refused.returncode, "give --host NAME" in refused.stderr) == (2, True)
    leave(fleet.fabric)
    fleet.start_fabric("--bind", "::1")
    fleet.node("a")
    assert f"nats://[::1]:{fleet.port}" in fleet.view.file("viewing.json").read_text()


@pytest.mark.parametrize("is_chain", [False, True], ids=["alone", "with its chain"])
def test_a_certificate_of_an_authority_is_used_and_no_other_of_that_authority(
    world: World, fleet: Fleet, is_chain: bool
) -> None:
    authority = _certificate(world.root / "authority")
    ours, another = (_certificate(world.root / name, authority) for name in ("ours", "another"))

    def start(certificate: Path) -> None:
        leave(fleet.fabric)
        chain = certificate.with_suffix(".chain")
        # The key in that file stays where it is.
        parts = [certificate.with_suffix(".key"), certificate, *([authority] if is_chain else [])]
        chain.write_text("".join(part.read_text() for part in parts))
        fleet.start_fabric("--tls-cert", chain, "--tls-key", certificate.with_suffix(".key"))

    start(ours)
    node = fleet.node("a")
    for machine, name in ((node, "joined.json"), (fleet.view, "viewing.json")):
        assert "PRIVATE KEY" not in machine.file(name).read_text()
    start(another)
    (row,) = json.loads(node.hold("node", "ls", "--json").stdout)["views"]
    assert "its certificate is not the expected one" in row["why"]
    start(ours)
    fleet.until_connected("a")


def _certificate(path: Path, authority: Path | None = None) -> Path:
    words = ["req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-subj", f"/CN={path.name}"]
    words += ["-x509", "-days", "2", "-keyout", str(path.with_suffix(".key")), "-out", str(path)]
    if authority is not None:
        words += ["-CA", str(authority), "-CAkey", str(authority.with_suffix(".key"))]
        words += ["-addext", "basicConstraints=CA:FALSE"]
    subprocess.run(["openssl", *words], check=True, capture_output=True)
    return path


def _coded(invitation: dict[str, object]) -> str:
    import hashlib

    body = json.dumps(invitation).encode()
    return "hf." + base64.urlsafe_b64encode(hashlib.sha256(body).digest()[:6] + body).decode()


def _expire(fleet: Fleet, node: str) -> None:
    """As if fifteen minutes had passed: the fabric looks at the time of each login when it reads them."""
    path = fleet.view.file("fabric.json")
    record = json.loads(path.read_text())
    record.pop("check", None)
    for each in record["logins"].values():
        if each.get("node") == node:
            each["until_s"] = 1.0
    path.write_text(json.dumps(record))
    if fleet.fabric.returncode is None:
        fleet.fabric.signal(signal.SIGHUP)


def _left(fleet: Fleet, node: str) -> set[str]:
    """The files of the view that know of this machine."""
    files = {path.name: path.read_text("latin-1") for path in fleet.view.file("").iterdir()}
    return {name for name, text in files.items() if f"n-{node}-" in text}
