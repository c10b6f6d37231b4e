"""One exchange, without any fabric: order, seals, credit and silence."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from nacl.public import PrivateKey

from holdfast.nodes import sealing
from holdfast.nodes.exchange import CREDIT_BYTES, HEAR_S, SAY_S, Broken, Exchange

if TYPE_CHECKING:
    from collections.abc import Iterator

FACTS = {"exchange": "e", "node": "n", "view": "v", "reply": "r"}
NOW = 1000.0


def pair() -> tuple[Exchange, Exchange]:
    """The view's side and the node's, after a handshake."""
    view, node = PrivateKey.generate(), PrivateKey.generate()
    opening = sealing.Opening(view, node.public_key, FACTS)
    at_node, answer, said = sealing.answer(node, view.public_key, opening.message, {"instance": "i"})
    assert said == FACTS
    at_view, told = opening.finish(answer)
    assert told["instance"] == "i"
    return Exchange(at_view, NOW), Exchange(at_node, NOW)


def test_what_is_sent_arrives_in_both_directions_in_order() -> None:
    view, node = pair()
    for number in range(3):
        assert node.receive(view.data(number, b"x" * number, NOW), NOW) == ((number, b"x" * number), 9 + number)
        found = view.receive(node.control({"type": "hello", "n": number}, NOW), NOW)
        assert found is not None
        assert found[0] == {"type": "hello", "n": number}


def flips(message: bytes) -> Iterator[bytes]:
    """The message with each of its bits flipped in turn."""
    for bit in range(8 * len(message)):
        changed = bytearray(message)
        changed[bit // 8] ^= 1 << bit % 8
        yield bytes(changed)


@pytest.mark.covers("nodes:7")
def test_one_flipped_bit_at_any_position_ends_the_exchange() -> None:
    view, node = pair()
    for number, message in enumerate((view.data(0, b"typed", NOW), view.ping(NOW), view.end(NOW))):
        for changed in flips(message):
            with pytest.raises(Broken):
                node.receive(changed, NOW)
        if number < 2:
            node.receive(message, NOW)


def test_one_flipped_bit_at_any_position_ends_the_handshake() -> None:
    view, node = PrivateKey.generate(), PrivateKey.generate()
    opening = sealing.Opening(view, node.public_key, FACTS)
    for changed in flips(opening.message[sealing.KEY_ID_BYTES :]):
        with pytest.raises(sealing.BadSeal):
            sealing.answer(node, view.public_key, opening.message[: sealing.KEY_ID_BYTES] + changed, {})
    _, answer, _ = sealing.answer(node, view.public_key, opening.message, {})
    for changed in flips(answer):
        with pytest.raises(sealing.BadSeal):
            opening.finish(changed)


def test_a_repeat_and_a_hole_end_the_exchange() -> None:
    view, node = pair()
    first = view.data(0, b"1", NOW)
    node.receive(first, NOW)
    with pytest.raises(Broken):
        node.receive(first, NOW)
    view, node = pair()
    view.data(0, b"1", NOW)
    with pytest.raises(Broken):
        node.receive(view.data(0, b"2", NOW), NOW)


def test_a_message_of_another_exchange_and_of_the_other_direction_is_refused() -> None:
    view, node = pair()
    other, _ = pair()
    with pytest.raises(Broken):
        node.receive(other.data(0, b"1", NOW), NOW)
    with pytest.raises(Broken):
        view.receive(view.data(0, b"1", NOW), NOW)


def test_a_sender_stops_when_its_credit_is_used_and_continues_when_it_is_acknowledged() -> None:
    view, node = pair()
    sent = []
    while view.may_send:
        sent.append(view.data(0, bytes(64 << 10), NOW))
    assert CREDIT_BYTES - (192 << 10) < sum(map(len, sent)) <= CREDIT_BYTES
    for message in sent:
        found = node.receive(message, NOW)
        assert found is not None
        acknowledgement = node.taken(found[1], NOW)
        if acknowledgement is not None:
            assert view.receive(acknowledgement, NOW) is None
    assert view.may_send


def test_an_acknowledgement_of_what_was_not_sent_ends_the_exchange() -> None:
    view, node = pair()
    with pytest.raises(Broken):
        view.receive(node.control({"type": "ack", "bytes": 5}, NOW), NOW)


def test_silence_asks_for_a_word_and_then_ends_the_exchange() -> None:
    view, node = pair()
    assert view.due() == NOW + SAY_S
    assert view.owes_word(NOW + SAY_S)
    assert node.receive(view.ping(NOW + SAY_S), NOW + SAY_S) is None
    assert not view.owes_word(NOW + SAY_S + 1)
    assert not node.is_silent(NOW + HEAR_S)
    assert view.is_silent(NOW + HEAR_S)


def test_an_end_carries_the_problem_of_the_other_side() -> None:
    view, node = pair()
    with pytest.raises(Broken) as over:
        view.receive(node.end(NOW, {"code": "busy"}), NOW)
    assert over.value.problem == {"code": "busy"}


def test_an_answer_of_another_key_or_to_another_handshake_is_refused() -> None:
    view, node, stranger = (PrivateKey.generate() for _ in range(3))
    opening = sealing.Opening(view, node.public_key, FACTS)
    with pytest.raises(sealing.BadSeal):
        sealing.answer(node, stranger.public_key, opening.message, {})
    with pytest.raises(sealing.BadSeal):
        sealing.answer(stranger, view.public_key, opening.message, {})
    other = sealing.Opening(view, node.public_key, FACTS)
    _, answer, _ = sealing.answer(node, view.public_key, opening.message, {})
    with pytest.raises(sealing.BadSeal):
        other.finish(answer)


def test_a_replayed_open_gets_an_answer_that_only_the_view_can_use() -> None:
    view, node = PrivateKey.generate(), PrivateKey.generate()
    opening = sealing.Opening(view, node.public_key, FACTS)
    opening.finish(sealing.answer(node, view.public_key, opening.message, {})[1])
    again, answer, _ = sealing.answer(node, view.public_key, opening.message, {})
    # Whoever replayed it has neither the fixed nor the fresh key of the view.
    forger = sealing.Opening(PrivateKey.generate(), node.public_key, FACTS)
    with pytest.raises(sealing.BadSeal):
        forger.finish(answer)
    with pytest.raises(Broken):
        Exchange(again, NOW).receive(bytes(40), NOW)
