"""`Dominds`: the toolset object. It keeps its options; what it knows of sessions it asks for each time."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING

from ...errors import BadArgument, HoldfastError, NotFound, Removed, StillRunning
from ...home import check_labels
from ...model import FINAL_STATES, LOST, STALE, UNREACHABLE
from ...signals.names import default_name
from ..answer import Answer
from ..toolset import Toolset
from . import arguments, output, sessions, shell, stop, wording
from .answers import FAILURE, answer
from .reminder import Reminder, is_reminder
from .wakeups import Wakeups

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from ...host.aio import AsyncHoldfast, AsyncSession
    from ...signals.consumer import AsyncConsumer
    from ..toolset import Approve, Tool
    from .wakeups import Inject, Place

_POLICIES = ("stop", "report")
# So many reminders are behind an answer in full, and so many more as one line each.
_REMINDED_WHOLE = 5
_REMINDED_LINES = 20


class Dominds(Toolset):
    """One agent (`owner`), one of its dialogs (`dialog`, with its `root`), the sessions of one place."""

    name = "dominds"
    tools = arguments.tools(extended=False)
    strict_types = True
    resources = MappingProxyType({"reminders": "the daemons of this agent, as lifecycle reminders"})
    instructions = (
        "Commands run here outlive this connection: an aborted call, a client that restarts or a server that dies ends "
        "the waiting of `shell_cmd`, never the command. One that runs longer than timeoutSeconds goes on as a daemon; "
        "`get_daemon_output` shows what it printed at any time, and with timeout_ms waits for more: do not poll. "
        "Answers end with the lifecycle reminders of your daemons, and the resource holdfast://reminders has them all. "
        "Ends stay in a queue until you acknowledge them with `signals`."
    )

    def __init__(
        self,
        hf: AsyncHoldfast,
        owner: str,
        *,
        dialog: str | None = None,
        root: str | None = None,
        place: str = "local",
        stale_policy: str = "stop",
        stop_grace_s: float = 1.0,
        result_chars: int = 48_000,
        reminder_chars: int = 4_000,
        extended: bool = False,
        texts: Mapping[str, str] | None = None,
        approve: Approve | None = None,
    ) -> None:
        if stale_policy not in _POLICIES:
            raise BadArgument("stale_policy", f"{str(stale_policy)[:40]!a} is not known", "give stop or report")
        for option, number in (
            ("stop_grace_s", stop_grace_s),
            ("result_chars", result_chars),
            ("reminder_chars", reminder_chars),
        ):
            if number < 0:
                raise BadArgument(option, f"{number} is below 0", "leave it out, or give 0 or more")
        if extended:
            self.tools = arguments.tools(extended=True)
        super().__init__(hf, owner, approve=approve)
        labels = {"toolset": self.name, "dialog": dialog, "root": root}
        self.labels = check_labels({name: value for name, value in labels.items() if value is not None})
        self.place = place
        self.stale_policy = stale_policy
        self.stop_grace_s = float(stop_grace_s)
        self.result_chars = int(result_chars)
        self.reminder_chars = int(reminder_chars)
        self.texts = wording.Texts(texts)
        # What was told of each daemon, for clients that get reminders in answers.
        self._reminded: dict[str, tuple[Any, ...]] = {}

    async def open(self) -> None:
        await self.recover()

    # The tools.

    async def _shell_cmd(self, **given: Any) -> Answer:
        lines = given.pop("scrollbackLines") or sessions.VIEW_LINES
        wait_s = given.pop("timeoutSeconds") or sessions.WAIT_S
        program = given.pop("shell") or sessions.SHELL
        return await shell.run(self, shell=program, lines=lines, wait_s=wait_s, **given)

    async def _get_daemon_output(self, **given: Any) -> Answer:
        return await output.read(self, **given)

    async def _stop_daemon(self, **given: Any) -> Answer:
        return await stop.stop(self, **given)

    def _take(self, tool: Tool, given: object) -> dict[str, Any]:
        return arguments.take(tool, given)

    async def _failed(self, tool: Tool, problem: HoldfastError) -> Answer:
        return answer(FAILURE, [str(problem)], {"error": problem.to_json()})

    # Reminders: the list of the daemons.

    async def reminders(self) -> list[Reminder]:
        """What a host puts before each generation, by start time. Looking changes nothing."""
        retired = self.kept().all("retired")
        found = []
        for session in await self.own_sessions():
            if session.id not in retired:
                # What was told of it matters once it has ended.
                told = await session.told() if session.state in FINAL_STATES else []
                if is_reminder(session, told, receipt=bool(self.shown(session.id))):
                    try:
                        found.append(await Reminder.of(self, session, told))
                    except (NotFound, Removed):
                        continue  # another process removed it while we looked
        return sorted(found, key=lambda each: (each.started_at, each.id))

    async def reminding(self, answer: Answer) -> Answer:
        """An answer with reminders behind it, for agents whose host does not put them before each generation: whole
        where something changed since the last answer, one line for a daemon that goes on as it was, and none for one
        whose end was told."""
        try:
            found = await self.reminders()
        except HoldfastError:
            return answer  # the next answer has them
        told, said = self._reminded, []
        self._reminded = {each.id: each.fingerprint for each in found}
        changed = [each for each in found if told.get(each.id) != each.fingerprint]
        # What the answer itself is about it has said.
        whole = [each for each in changed if each.id != answer.data.get("session")]
        said = [each.render() for each in whole[-_REMINDED_WHOLE:]]
        rest = [each for each in found if each not in whole[-_REMINDED_WHOLE:] and not each.completed]
        rest = [each for each in rest if each.id != answer.data.get("session")]
        said += [each.summary() for each in rest[-_REMINDED_LINES:]]
        if left := len(rest[:-_REMINDED_LINES]):
            said.append(self.texts("more_reminders", count=left))
        if not said:
            return answer
        hidden = self.hides()
        said = [hidden(each) for each in said] if hidden else said
        return Answer("\n\n".join([answer.text, *said]), {**answer.data, "reminders": said}, error=answer.error)

    async def resource(self, name: str) -> str:
        said = [each.render() for each in await self.reminders()]
        return "\n\n".join(said) or self.texts("no_reminders")

    async def dismiss(self, id: str) -> None:
        """Show it no more. Refused while something of it lives."""
        session = await self.find(id)
        if not self.is_own(session):
            raise NotFound(id)
        if sessions.something_lives(session):
            problem = StillRunning(session.id, sessions.survivors(session))
            problem.fix = f"end it with {wording.stop_call(session.pid)} first"
            raise problem
        self.retire(session)

    async def recover(self) -> dict[str, list[str]]:
        """Look at every daemon that is not known to be over. One whose runner is proven dead is ended, if that is the
        policy. Ids by what was found; `quarantined` are directories that nobody can read."""
        seen = await self.hf.recover()
        mine: dict[str, list[Any]] = {
            state: [each for each in getattr(seen, state) if self.is_own(each)] for state in (UNREACHABLE, STALE, LOST)
        }
        found = {state: [each.id for each in group] for state, group in mine.items()}
        found["stopped"] = []
        if self.stale_policy == "stop":
            for session in mine[STALE]:
                try:
                    if await stop.end_stale(self, session):
                        found["stopped"].append(session.id)
                except HoldfastError:
                    continue  # it is shown as what it is, and a stop of it tells why
        return {**found, "quarantined": list(seen.quarantined)}

    def wakeups(self, place: Place, inject: Inject) -> Wakeups:
        """What tells this agent's dialogs of endings. One per agent is enough; several share."""
        return Wakeups(self, place, inject)

    # For the modules of this family.

    def consumer(self) -> AsyncConsumer:
        name = default_name(self.owner, self.name)
        return self.hf.consumer(name, [self.owner], variants=["lifecycle"])

    def is_here(self, session: AsyncSession) -> bool:
        """What a pid may mean: any session of this owner. Pids of another place mean nothing here."""
        return session.owner == self.owner and session.place == self.place

    def is_own(self, session: AsyncSession) -> bool:
        """Of those, what this family started: the others are nothing to remind of, and not its to clean up."""
        return self.is_here(session) and session.labels.get("toolset") == self.name

    async def sessions_here(self) -> list[AsyncSession]:
        return [each for each in await self.hf.sessions(all=True, owner=self.owner) if self.is_here(each)]

    async def own_sessions(self) -> list[AsyncSession]:
        found = await self.hf.sessions(all=True, owner=self.owner, labels={"toolset": self.name})
        return [each for each in found if self.is_own(each)]

    def retire(self, session: AsyncSession) -> None:
        self.kept().put(session.id, "retired", True)

    def shown(self, id: str) -> dict[str, int]:
        """How far each stream was shown to this owner."""
        return self.kept().get(id, "shown") or {}

    def show(self, id: str, ends: Mapping[str, int]) -> None:
        before = self.shown(id)
        after = {**before, **{stream: max(end, before.get(stream, 0)) for stream, end in ends.items()}}
        if after != before:
            self.kept().put(id, "shown", after)
