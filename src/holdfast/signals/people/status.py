"""`people.json` of a home: the status of its channels. Since when each exists, what it sent, what failed last.

Only the process that holds the lock for notifying people writes it. It holds no address and no text of a session.
"""

from __future__ import annotations

import os

from ...core import clock, records

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Mapping
    from typing import Any


FILE = "people.json"
_WHY_CHARACTERS = 300
# So many sent signals are remembered by id; nothing older than these is sent.
_SENT_MAX = 1000


class ChannelStatus:
    def __init__(self, home: str) -> None:
        self._home = home
        self._channels = read(home)

    def over(self, channel: str, address: str) -> str | None:
        """Why this channel is not used any more; None when it is. Another address is another channel."""
        found = self._channels.get(channel, {}).get("over")
        if not isinstance(found, dict) or found.get("address") != fingerprint(address):
            return None
        return str(found.get("why"))

    def end(self, channel: str, address: str, why: str) -> None:
        over = {"at": clock.now_text(), "why": why[:_WHY_CHARACTERS], "address": fingerprint(address)}
        self._change(channel, over=over)

    def begin(self, channel: str, events: Collection[str], configured_ns: int) -> None:
        """A channel is new, or has other events, since `configured_ns`: what happened before is not sent. This file
        survives a lost index, so a channel that is known stays as old as it is."""
        facts = self._channels.get(channel, {})
        if facts.get("events") != sorted(events) or not isinstance(facts.get("since_ns"), int):
            self._change(channel, events=sorted(events), since_ns=max(configured_ns, self.since_ns(channel)))

    def since_ns(self, channel: str) -> int:
        """Wall-clock time before which nothing is sent."""
        since = self._channels.get(channel, {}).get("since_ns")
        return since if isinstance(since, int) else 0

    def has_sent(self, channel: str, signal: str) -> bool:
        return signal in self._sent(channel)

    def sent(self, channel: str, signals: Mapping[str, int]) -> None:
        """These went out: ids with the wall-clock time of each. A lost index does not send them again."""
        known = {**self._sent(channel), **signals}
        since_ns = self.since_ns(channel)
        for id in list(known)[:-_SENT_MAX]:
            since_ns = max(since_ns, known.pop(id))
        self._change(channel, sent=known, since_ns=since_ns)

    def _sent(self, channel: str) -> dict[str, int]:
        sent = self._channels.get(channel, {}).get("sent")
        return {id: at for id, at in sent.items() if isinstance(at, int)} if isinstance(sent, dict) else {}

    def failed(self, channel: str, signal: str, why: str) -> None:
        last = {"at": clock.now_text(), "signal": signal, "why": why[:_WHY_CHARACTERS]}
        self._change(channel, failed=self._count(channel, "failed") + 1, last_failure=last)

    def expired(self, channel: str, count: int) -> None:
        """So many were too old when they were claimed."""
        self._change(channel, expired=self._count(channel, "expired") + count)

    def _count(self, channel: str, what: str) -> int:
        count = self._channels.get(channel, {}).get(what)
        return count if isinstance(count, int) else 0

    def _change(self, channel: str, **facts: object) -> None:
        self._channels[channel] = {**self._channels.get(channel, {}), **facts}
        try:
            records.write(None, os.path.join(self._home, FILE), {"v": 1, "channels": self._channels})
        except OSError:
            pass  # a full disk does not stop notices


def read(home: str) -> dict[str, dict[str, Any]]:
    """What is known of each channel, by the name of its consumer."""
    try:
        found = records.read(os.path.join(home, FILE)).get("channels")
    except (OSError, ValueError):
        return {}
    return {name: each for name, each in found.items() if isinstance(each, dict)} if isinstance(found, dict) else {}


def troubles(home: str) -> list[str]:
    """A sentence for each channel that is not used any more, or that did not deliver something."""
    found = []
    for name, facts in sorted(read(home).items()):
        over, last = facts.get("over"), facts.get("last_failure")
        if isinstance(over, dict):
            found.append(f"{name} has not been used since {over.get('at')}: {over.get('why')}")
        elif isinstance(last, dict):
            failed = f"{facts.get('failed')} {'notice' if facts.get('failed') == 1 else 'notices'}"
            found.append(f"{name} failed to deliver {failed}, most recently at {last.get('at')}: {last.get('why')}")
    return found


def fingerprint(address: str) -> str:
    from _blake2 import blake2b

    return blake2b(address.encode(), digest_size=8).hexdigest()
