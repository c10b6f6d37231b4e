"""Tickets: one upgrade, of one session, in one role, soon, from where it was asked for."""

from __future__ import annotations

import asyncio
import json
import time
from datetime import datetime
from typing import TYPE_CHECKING

import pytest

from holdfast.errors import Busy
from holdfast.server import responses
from holdfast.server.gate import Tickets
from holdfast.server.tokens import home_token
from support.serving import serving_inside

if TYPE_CHECKING:
    from holdfast import Session
    from support.serving import Answer, Inside, Serving
    from support.world import World

SPENT = (401, "ticket-spent")


@pytest.fixture
def session(world: World) -> Session:
    return world.open().run("echo done", tty=True, wait=30, name="job")


def of(inside: Inside) -> dict[str, str]:
    """The headers of one that has only a ticket."""
    return {"Host": f"127.0.0.1:{inside.port}"}


@pytest.mark.covers("server:9")
def test_a_ticket_works_once_and_for_nothing_else(world: World, session: Session) -> None:
    other = world.open().run("true", tty=True, wait=30)

    async def main() -> None:
        async with serving_inside() as inside:

            async def new(role: str = "control") -> str:
                answer = await inside.ticket(session.id, role)
                assert answer.status == 200
                return str(answer.json["ticket"])

            async def shown(id: str, ticket: str, more: str = "") -> tuple[int, str]:
                answer = await inside.upgrade(f"/v1/sessions/{id}/attach?ticket={ticket}{more}", of(inside))
                return answer.status, "" if answer.status == 101 else answer.slug

            ticket = await new()
            assert await shown(session.id, ticket) == (101, "")
            assert await shown(session.id, ticket) == SPENT

            for _ in range(10):
                ticket = await new()
                racing = await asyncio.gather(*(shown(session.id, ticket) for _ in range(4)))
                assert sorted(racing) == [(101, ""), SPENT, SPENT, SPENT]

            ticket = await new()
            assert await shown(other.id, ticket) == SPENT
            assert await shown(session.id, ticket) == SPENT
            assert await shown("nobody", await new()) == SPENT
            assert await shown(session.id, await new("observe"), "&role=control") == SPENT
            assert await shown(session.id, await new("control"), "&role=observe") == SPENT

            ticket = await new()
            inside.now += 31
            assert await shown(session.id, ticket) == SPENT
            ticket = await new()
            inside.now += 29
            assert await shown(session.id, ticket) == (101, "")

            assert await shown(session.id, "") == SPENT
            assert await shown(session.id, "x" * 43) == SPENT

    asyncio.run(main())


def test_a_ticket_for_something_else_is_held_back_counted_and_recorded(world: World, session: Session) -> None:
    other = world.open().run("true", tty=True, wait=30)

    async def main() -> None:
        async with serving_inside() as inside:

            async def shown(id: str, role: str, more: str = "") -> int:
                ticket = (await inside.ticket(session.id, role)).json["ticket"]
                return (await inside.upgrade(f"/v1/sessions/{id}/attach?ticket={ticket}{more}", of(inside))).status

            assert await shown(session.id, "control") == 101
            assert inside.slept == []
            assert await shown(other.id, "control") == 401
            assert await shown("nobody", "observe") == 401
            assert await shown(session.id, "observe", "&role=control") == 401
            assert inside.slept == [0.25, 0.5, 1.0]
            metrics = (await inside.ask("/metrics")).body.decode()
            for series in ('tickets_total{result="used"} 1', 'tickets_total{result="refused"} 3'):
                assert f"holdfast_{series}" in metrics
            assert 'holdfast_auth_failures_total{reason="wrong_ticket"} 3' in metrics

    asyncio.run(main())
    lines = (world.home / "server" / "audit.jsonl").read_text().splitlines()
    refused = [entry for entry in map(json.loads, lines) if entry["action"] == "refused"]
    assert [(entry["reason"], entry["peer"]) for entry in refused] == [("wrong_ticket", "127.0.0.1")] * 3


def test_a_ticket_is_for_the_page_that_asked_and_for_no_other_instance(world: World, session: Session) -> None:
    async def main() -> None:
        async with serving_inside() as inside, serving_inside() as second:
            own, local = f"http://127.0.0.1:{inside.port}", f"http://localhost:{inside.port}"
            target = f"/v1/sessions/{session.id}/attach?ticket="
            for asked, shown, status in ((own, own, 101), (own, local, 401), (own, None, 401), (None, own, 401)):
                origin = {"Origin": asked} if asked else {}
                ticket = (await inside.ticket(session.id, **origin)).json["ticket"]
                presented = {**of(inside), **({"Origin": shown} if shown else {})}
                assert (await inside.upgrade(target + ticket, presented)).status == status, (asked, shown)
            ticket = (await inside.ticket(session.id)).json["ticket"]
            assert (await second.upgrade(target + ticket, of(second))).slug == "ticket-spent"
            assert (await inside.upgrade(target + ticket, of(inside))).status == 101

    asyncio.run(main())


def test_a_ticket_with_a_wrong_token_beside_it_is_refused(world: World, session: Session) -> None:
    async def main() -> None:
        async with serving_inside() as inside:
            target = f"/v1/sessions/{session.id}/attach?ticket="
            for token, status in (("hf_home_wrong", 401), (inside.token, 101)):
                ticket = (await inside.ticket(session.id)).json["ticket"]
                headers = {**of(inside), "Authorization": f"Bearer {token}"}
                assert (await inside.upgrade(target + ticket, headers)).status == status

    asyncio.run(main())


def test_a_ticket_is_refused_once_its_token_is_revoked(serving: Serving, session: Session) -> None:
    minted = serving.call("POST", "/v1/tokens", {"scope": "observe"}).json
    authorization = {"Authorization": f"Bearer {minted['token']}"}
    tickets = [serving.ticket(session.id, "observe", **authorization) for _ in range(2)]

    def shown(ticket: str) -> Answer:
        return serving.upgrade(f"/v1/sessions/{session.id}/attach?ticket={ticket}", {"Host": serving.address})

    assert shown(tickets[0]).status == 101
    assert serving.call("DELETE", f"/v1/tokens/{minted['id']}").status == 204
    refused = shown(tickets[1])
    assert (refused.status, refused.slug) == SPENT


def test_a_ticket_says_what_it_is_for_and_until_when(serving: Serving, session: Session) -> None:
    for ref in (session.id, session.id[:6], "job"):
        asked_ms = time.time_ns() // 1_000_000
        answer = serving.ask(
            f"/v1/sessions/{ref}/tickets",
            {**serving.bearer, "Content-Type": "application/json; charset=utf-8"},
            method="POST",
            body=b'{"role": "observe"}',
        )
        assert answer.status == 200
        assert set(answer.json) == {"ticket", "expires_at", "role"}
        assert answer.json["role"] == "observe"
        assert len(answer.json["ticket"]) == 43
        expires_ms = round(datetime.fromisoformat(answer.json["expires_at"]).timestamp() * 1000)
        assert asked_ms + 30_000 <= expires_ms <= time.time_ns() // 1_000_000 + 30_000


def test_what_is_no_request_for_a_ticket_is_refused_by_name(serving: Serving, session: Session) -> None:
    typed = {"Content-Type": "application/json"}
    target = f"/v1/sessions/{session.id}/tickets"
    for where, headers, body, expected in (
        (target, {}, b'{"role": "observe"}', (415, "wrong-media-type")),
        (target, typed, b"", (400, "bad-request")),
        (target, typed, b"[]", (400, "bad-request")),
        (target, typed, b"{", (400, "bad-request")),
        (target, typed, b"[" * 100_000, (400, "bad-request")),
        (target, typed, b'{"role": "\xff"}', (400, "bad-request")),
        (target, typed, b'{"role": "observe", "role": "control"}', (400, "bad-request")),
        (target, typed, b"{}", (400, "bad-argument")),
        (target, typed, b'{"role": "manage"}', (400, "bad-argument")),
        (target, typed, b'{"role": "observe", "ttl": 9}', (400, "bad-argument")),
        ("/v1/sessions/nobody/tickets", typed, b'{"role": "observe"}', (404, "not-found")),
        ("/v1/sessions/last/tickets", typed, b'{"role": "observe"}', (404, "not-found")),
        (f"/v1/sessions/{session.runner_pid or 1}/tickets", typed, b'{"role": "observe"}', (404, "not-found")),
    ):
        answer = serving.ask(where, {**serving.bearer, **headers}, method="POST", body=body)
        assert (answer.status, answer.slug) == expected, body[:40]
    answer = serving.ask(target, {**serving.bearer, **typed}, method="POST", body=b'{"role": "observe", "ttl": 9}')
    assert "ttl" in answer.json["detail"]


def test_no_more_are_outstanding_than_the_limit_and_old_ones_make_room() -> None:
    now = 0.0
    tickets = Tickets(lambda: now, 100)
    caller = home_token("secret")
    given = [tickets.issue("b12345678", "observe", caller, None) for _ in range(100)]
    with pytest.raises(Busy, match=str(100)):
        tickets.issue("b12345678", "observe", caller, None)
    assert tickets.take(given[0], None) is not None
    tickets.issue("b12345678", "observe", caller, None)
    now = responses.TICKET_S
    assert tickets.take(given[1], None) is None
    for _ in range(100):
        tickets.issue("b12345678", "observe", caller, None)
    assert len(tickets._open) == 100
