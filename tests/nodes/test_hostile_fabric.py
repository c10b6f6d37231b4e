"""The fabric is not trusted: it repeats, changes, reads and forges what it likes, and nothing comes of it."""

from __future__ import annotations

import asyncio
import json
import os
import random
import secrets
import signal
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from support.fabric_proxy import FabricProxy, flipped
from support.scale import scaled
from support.serving import START_BOUND_S, closed_with
from support.through_nodes import attached, seen_until, there
from support.waiting import until

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from support.fabric_proxy import Message
    from support.fleets import Fleet, FleetServing, Machine
    from support.serving import Answer
    from support.world import World

OPENED, SEALED = 2, 3
# The longest message that ends an exchange without a problem; an answer to a request is longer.
END_BYTES = 80


class Hostile:
    """Two nodes and a view whose messages all pass one proxy, and a login that may do everything on the server."""

    def __init__(self, world: World, fleet: Fleet) -> None:
        self.fleet = fleet
        self.proxy = FabricProxy(world, fleet.port)
        self.nodes = [fleet.join(name) for name in "ab"]
        self.proxy.carry(fleet.view.file("viewing.json"), *(node.file("joined.json") for node in self.nodes))
        for node in self.nodes:
            node.serve()
            fleet.until_connected(node.name)
        self.serving = fleet.serve_view()
        for node in self.nodes:
            until(
                lambda node=node: self.serving.call("GET", f"/v1/nodes/{node.name}/info").status == 200,  # type: ignore[misc]
                START_BOUND_S,
                what=f"node {node.name}",
            )
        self._let_operator_in()

    def _let_operator_in(self) -> None:
        path = self.fleet.view.file("nats.conf")
        path.write_text(path.read_text().replace("users: [", 'users: [ { user: "operator", password: "o" },'))
        fabric = self.fleet.fabric.pid
        (child,) = Path(f"/proc/{fabric}/task/{fabric}/children").read_text().split()
        os.kill(int(child), signal.SIGHUP)

    async def operate(self, messages: list[tuple[str, str, bytes]]) -> list[tuple[str, bytes]]:
        """Publish as the operator of the fabric; all that nodes say meanwhile."""
        import nats

        heard: list[tuple[str, bytes]] = []

        async def take(message: Any) -> None:
            heard.append((message.subject, message.data))

        async with asyncio.timeout(START_BOUND_S):
            client = None
            while client is None:
                try:
                    client = await nats.connect(
                        f"nats://127.0.0.1:{self.fleet.port}", user="operator", password="o", allow_reconnect=False
                    )
                except nats.errors.Error:
                    continue
            await client.subscribe("hf1.*.v.>", cb=take)
            await client.flush()
            await client.flush()
            for subject, reply, payload in messages:
                await client.publish(subject, payload, reply)
            await client.flush()
        # Nodes answer one by one: with an answer to our own question they have seen all that was before it.
        for node in self.nodes:
            await asyncio.to_thread(there, self.serving, node.name, "/info")
        await client.flush()
        await client.close()
        return heard


def state_of(node: Machine) -> dict[str, bytes]:
    """What exists there of its sessions: the files that an action would change."""
    names = ("spec.json", "exit.json", "inputs.jsonl")
    return {
        f"{path.parent.name}/{path.name}": path.read_bytes()
        for path in sorted((node.home / "sessions").glob("*/*"))
        if path.name in names or path.name.startswith("tty.0")
    }


def typed(serving: FleetServing, node: str, session: str, text: str) -> Answer:
    return serving.call("POST", f"/v1/nodes/{node}/sessions/{session}/input", {"submit": text})


@pytest.mark.covers("nodes:6", "nodes:8")
def test_the_fabric_can_neither_read_messages_nor_replay_them(world: World, fleet: Fleet) -> None:
    hostile = Hostile(world, fleet)
    serving, proxy, (a, b) = hostile.serving, hostile.proxy, hostile.nodes
    words = [f"mark{secrets.token_hex(6)}" for _ in range(100)]
    output, inputs, names, commands = words[:25], words[25:50], words[50:75], words[75:]
    script = f"printf '%s\\n' {' '.join(output)}; : {' '.join(commands)}; exec cat"
    options = {"tty": True, "name": names[0], "labels": {name: name for name in names[1:]}}
    started = serving.call("POST", "/v1/nodes/a/sessions", {"command": script, **options})
    assert started.status == 201, started.body
    id = started.json["id"]
    with attached(serving, "a", id) as viewer:
        seen = seen_until(viewer, output[-1].encode())
        viewer.send(json.dumps({"type": "input", "id": 1, "submit": " ".join(inputs)}))
        seen += seen_until(viewer, inputs[-1].encode())
    row = there(serving, "a", f"/sessions/{id}")
    assert row["name"] == names[0]
    spec = json.dumps(there(serving, "a", f"/sessions/{id}/spec"))
    assert [word for word in commands if word not in spec] == []
    text = there(serving, "a", f"/sessions/{id}/output?limit=65536")["text"].replace("\n", "")
    assert all(word in text for word in (*output, *inputs))
    listed = serving.call("GET", "/v1/sessions?nodes=all").json["items"]
    assert [each["labels"] for each in listed if each["id"] == id] == [options["labels"]]
    captured = list(proxy.messages)
    assert len(captured) > 50
    assert [word for word in words if word.encode() in proxy.raw] == []

    before = [state_of(node) for node in (a, b)]
    sent = [(each.subject, each.reply, each.payload) for each in captured if each.is_sent]
    shuffled = random.Random(7).sample(sent, len(sent))
    to_other_node = [(subject.replace(".n.a.", ".n.b."), reply, raw) for subject, reply, raw in sent]
    with attached(serving, "a", id) as viewer:
        seen_until(viewer, b"")
        offset = there(serving, "a", f"/sessions/{id}")["ends"]["tty"]
        first, last = proxy.messages.index(captured[-1]), len(proxy.messages)
        opened = [each for each in proxy.messages[first:last] if each.kind == OPENED and each.is_sent]
        target = next(each.exchange for each in opened if _is_open(proxy.messages, each.exchange))
        parts = [subject.rpartition(".")[0] for subject, _, _ in sent]
        to_other_exchange = [(f"{p}.{target}", reply, raw) for p, (_, reply, raw) in zip(parts, sent, strict=True)]
        heard: list[tuple[str, bytes]] = []
        for batch in (sent, shuffled, to_other_node):
            heard += asyncio.run(hostile.operate(batch))
        # Not one of the batches hurt an exchange that it did not name.
        assert typed(serving, "a", id, "between").status == 200
        seen_until(viewer, b"between")
        asyncio.run(hostile.operate(to_other_exchange))
        closed_with(viewer)
    with attached(serving, "a", id, **{"from": offset}) as resumed:
        seen_until(resumed, b"between")
        # Messages of an exchange that is still open, sent again to the same.
        at = len(proxy.messages)
        resumed.send(json.dumps({"type": "input", "id": 1, "submit": "once"}))
        seen_until(resumed, b"once")
        fresh = [
            (each.subject, "", each.payload) for each in proxy.messages[at:] if each.is_sent and ".n." in each.subject
        ]
        assert fresh
        asyncio.run(hostile.operate(fresh))
        closed_with(resumed)
    # The terminal's echo, and what `cat` prints.
    until(
        lambda: any(raw.endswith(b"once\r\nonce\r\n") for raw in state_of(a).values()),
        what="the echo of it",
    )
    after = [state_of(node) for node in (a, b)]
    assert after[1] == before[1]
    assert after[0].keys() == before[0].keys()
    new = {name: after[0][name][len(old) :] for name, old in before[0].items() if after[0][name] != old}
    assert {name.rpartition("/")[2].partition(".")[0] for name in new} == {"inputs", "tty"}
    assert all(after[0][name].startswith(before[0][name]) for name in new)
    assert sum(name.endswith("inputs.jsonl") and raw.count(b"\n") for name, raw in new.items()) == 2
    assert there(serving, "a", f"/sessions/{id}")["state"] == "running"
    # What the replays brought out of the nodes: handshakes that only the view can use, and ends.
    replayed = {subject.rpartition(".")[2] for subject, _, _ in sent}
    answers = [raw for subject, raw in heard if subject.rpartition(".")[2] in replayed and raw not in _all(sent)]
    assert answers
    assert {raw[0] for raw in answers} <= {OPENED, SEALED}
    assert all(raw[0] == OPENED or len(raw) < END_BYTES for raw in answers)

    forged = _forged(fleet, a, b)
    heard = asyncio.run(hostile.operate(forged))
    # A stranger gets no answer, without which it cannot seal a request.
    assert {subject for subject, _ in heard} & {reply for _, reply, _ in forged} == set()
    assert state_of(b) == before[1]
    assert state_of(a).keys() == before[0].keys()
    assert state_of(a) == after[0]


def _all(sent: list[tuple[str, str, bytes]]) -> set[bytes]:
    return {raw for _, _, raw in sent}


def _is_open(messages: list[Message], exchange: str) -> bool:
    """An attach goes on: its exchange has more than a request and its end."""
    return sum(each.exchange == exchange for each in messages) > 0 and not any(
        each.exchange == exchange and each.is_sent and each.kind == SEALED and len(each.payload) < END_BYTES
        for each in messages
    )


def _forged(fleet: Fleet, *nodes: Machine) -> list[tuple[str, str, bytes]]:
    """Requests that are right in everything but the keys: a start, sealed by a key that only claims to be the view."""
    from nacl.public import PrivateKey

    from holdfast.nodes import sealing
    from holdfast.nodes.exchange import HEAD, OPEN

    made = []
    view = json.loads(fleet.view.file("viewing.json").read_text())
    for node in nodes:
        (joined,) = json.loads(node.file("joined.json").read_text())["views"].values()
        address = joined["fabric"]
        exchange, ours = secrets.token_hex(16), PrivateKey.generate()
        public = PrivateKey(node.file("key").read_bytes()).public_key
        reply = f"hf1.{address['fleet']}.v.{next(iter(json.loads(node.file('joined.json').read_text())['views']))}.x"
        facts = {"exchange": exchange, "node": node.name, "view": "view", "reply": f"{reply}.{exchange}"}
        opening = sealing.Opening(ours, public, facts)
        claimed = bytes.fromhex(joined["key"])[: sealing.KEY_ID_BYTES] + opening.message[sealing.KEY_ID_BYTES :]
        subject = f"hf1.{address['fleet']}.n.{node.name}.{exchange}"
        made += [(subject, facts["reply"], HEAD.pack(OPEN, 0) + each) for each in (opening.message, claimed)]
    assert view["nodes"].keys() == {node.name for node in nodes}
    return made


@pytest.mark.covers("nodes:7")
def test_one_flipped_bit_in_any_message_ends_that_exchange_alone_and_nothing_of_it_is_done(
    world: World, fleet: Fleet
) -> None:
    hostile = Hostile(world, fleet)
    serving, proxy, (a, _) = hostile.serving, hostile.proxy, hostile.nodes
    id = a.hold("start", "--tty", "--", "cat").stdout.strip()
    chance = random.Random(11)
    with attached(serving, "a", id) as bystander:
        seen_until(bystander, b"")
        known = {each.exchange for each in proxy.messages}
        # Of a request that types: who sends the message, and which of its messages it is.
        sealed = [(True, 1), (True, 2), (False, 1), (False, 2)]
        lost: list[str] = []
        typed_in: list[str] = []
        for number in range(scaled(16, 400)):
            is_question, ordinal = sealed[number % len(sealed)]
            text = f"sealed{number}."
            proxy.change = _flipping(known, is_question, ordinal, chance)
            answer = typed(serving, "a", id, text)
            if (is_question, ordinal) == (False, 2):
                # Half of an answer does not look like the whole.
                assert len(answer.body) < int(answer.headers["content-length"])
            else:
                assert answer.status == 504, (is_question, ordinal, answer.body)
                assert answer.json["sent"] is True
            (lost if is_question else typed_in).append(text)
        answers: dict[str, Answer] = {}
        # The handshake, both at once: a view waits for an answer that cannot come.
        for is_question in (True, False):
            # A bit of the number, which nothing seals, is among them.
            proxy.change = _flipping(known, is_question, 0, chance, [63])
            texts = [f"handshake{is_question}{number}." for number in range(scaled(4, 32))]
            asking = [
                threading.Thread(target=lambda text=text: answers.update({text: typed(serving, "a", id, text)}))
                for text in texts
            ]
            for thread in asking:
                thread.start()
            for thread in asking:
                thread.join()
            assert {answers[text].status for text in texts} <= {502, 504}
            lost += texts
        proxy.change = lambda message: message.payload
        assert typed(serving, "a", id, "the.last").status == 200
        seen = seen_until(bystander, b"the.last")
    # What was typed before the last is in front of it.
    assert [text for text in lost if text.encode() in seen] == []
    assert [text for text in typed_in if text.encode() not in seen] == []


def _flipping(
    known: set[str], is_question: bool, ordinal: int, chance: random.Random, first: Sequence[int] = ()
) -> Any:
    """Flip one bit of one message of each new exchange, `first` these."""
    bits = list(first)
    counts: dict[tuple[str, bool], int] = {}

    def change(message: Message) -> bytes | None:
        if not message.is_sent or message.exchange in known or message.exchange == "probe":
            return message.payload
        key = message.exchange, ".n." in message.subject
        counts[key] = counts.get(key, -1) + 1
        if key[1] is is_question and counts[key] == ordinal:
            return flipped(message.payload, bits.pop() if bits else chance.randrange(8 * len(message.payload)))
        return message.payload

    return change
