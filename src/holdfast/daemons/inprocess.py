"""Starting a daemon inside this host: its directory first, then the task or thread."""

from __future__ import annotations

import os

from ..errors import BadArgument, DamagedRecord, HoldfastError, NameTaken, NotFound
from ..host.attention import attention
from ..host.claims import Claim
from ..host.observe import from_files, read_files
from ..host.request import build
from ..model import LIVE_STATES
from ..runner.birth import Refused
from . import kinds
from .keeper import Keeper

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from ..host.core import Core
    from ..model import StartOptions
    from .attempt import Worker
    from .hostloop import HostLoop
    from .keptsignals import Told

# A worker that was asked to end has so long; there is nothing stronger to climb to.
GRACE_S = 10.0
_CLAIM_S = 10.0


class Start:
    """What was asked of a daemon: everything is checked before anything exists."""

    def __init__(
        self,
        core: Core,
        function: str,
        *,
        kind: str = "local_task",
        name: str | None = None,
        description: str | None = None,
        owner: str | None = None,
        labels: Mapping[str, str] | None = None,
        metadata: Mapping[str, Any] | None = None,
        notify: str | None = None,
        timeout: float | str | None = None,
        grace: float | str | None = None,
        id: str | None = None,
    ) -> None:
        # One with an id of its own is a host's own thing, of whatever kind.
        if id is None and not kinds.of(kind).in_process:
            raise BadArgument("kind", f"{kind!r} is run by a runner, not by a host", "use start()")
        # The options of a session, so that they are checked and recorded like theirs.
        options: dict[str, Any] = {
            "kind": kind,
            "name": name,
            "description": description,
            "owner": owner,
            "labels": labels,
            "metadata": {"function": function, **(metadata or {})},
            "notify": notify,
            "timeout": timeout,
            "grace": GRACE_S if grace is None else grace,
            "lifetime": "owner",
            "merge_stderr": True,
            "clean_env": True,
        }
        asked: StartOptions = options  # type: ignore[assignment]
        self.spec = build(function, asked, config=core.config, author=core.author, environ={}).spec
        if id is not None:
            self.spec["id"] = id
        # Its lines have the limits of a monitor's.
        self.spec["monitor"] = attention({"monitor": {"persistent": True}}, core.config, [])["monitor"]
        self.spec["endpoint"] = os.path.join(core.runtime, self.spec["id"] + ".sock")
        self._core = core

    def keep(self, host: HostLoop, worker: Worker, told: Told) -> Keeper:
        """The directory, under its name if it has one."""
        name = self.spec["name"]
        if name is None:
            return self._keep(host, worker, told)
        with Claim(self._core.home, "name", name).acquire(_CLAIM_S) as held:
            if held.holder is not None and self._bears(held.holder, name):
                raise NameTaken(name, held.holder)
            keeper = self._keep(host, worker, told)
            held.set(keeper.id)
        return keeper

    def _keep(self, host: HostLoop, worker: Worker, told: Told) -> Keeper:
        try:
            return host.call(lambda: Keeper(host, self._core.home.path, self.spec, worker, told))
        except Refused as refused:
            raise HoldfastError.from_wire(refused.frame) from None

    def _bears(self, id: str, name: str) -> bool:
        try:
            files = read_files(self._core.home, id)
        except (NotFound, DamagedRecord):
            return False
        return from_files(files).state in LIVE_STATES and files.now().get("name") == name
