"""The same command anew: what the spec of a session tells is asked for again, what it cannot tell has to be given."""

from __future__ import annotations

import os

from ..errors import BadArgument, IdentityMismatch, RunnerGone, SessionEnded, Unreachable
from ..model import FINAL_STATES
from ..places import LOCAL
from ..runner import tree
from .attention import asked_again
from .observe import elsewhere, read_files
from .tty import asked_again as terminal_again

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any, Literal

    from .core import Core
    from .observe import Files, Observed

    Lifetime = Literal["detached", "owner", "call"]

# Of the spec, as it stands there. Environment, input, descriptors and lifetime need more than the record has.
_ASKED_AGAIN = (
    "name",
    "owner",
    "labels",
    "description",
    "kind",
    "key",
    "cwd",
    "clean_env",
    "shell",
    "argv0",
    "tty",
    "size",
    "stdin",
    "merge_stderr",
    "timeout",
    "idle_timeout",
    "ttl",
    "memory",
    "limits",
    "umask",
    "oom_score_adj",
    "grace",
    "stop_ladder",
    "notify",
    "metadata",
    "log_cap",
    "notify_people",
    "place",
)


async def restart(
    core: Core,
    id: str,
    *,
    env: Mapping[str, str | None] | None = None,
    input: str | bytes | None = None,
    pass_fds: Sequence[int] | None = None,
    lifetime: Lifetime | None = None,
    owner_pid: int | None = None,
    grace: float | None = None,
) -> Observed:
    """Stop it if it runs, and start it again. A restart that cannot be the same is refused before anything is
    stopped; one whose stop leaves survivors starts nothing beside them. A session with a restart policy is
    restarted in place by its runner, unless something is to be different."""
    files = read_files(core.home, id)
    now = files.now()
    anew = (env, input, pass_fds, lifetime, owner_pid, grace)
    if now.get("restart") and all(given is None for given in anew):
        try:
            await core.request(id, "restart", by=core.author)
            return await core.observe(id)
        except (SessionEnded, RunnerGone, Unreachable):
            pass  # nobody is left who could do it in place
    options: Any = {name: now[name] for name in _ASKED_AGAIN if now.get(name) is not None}
    options.update(asked_again(now))
    options["env"] = _environment(now, env)
    if "tty" in options:
        options["tty"] = terminal_again(options["tty"], options["env"])
    if input is None and now.get("input_bytes") is not None:
        why = f"{now['input_bytes']} bytes were given at the first start, and input is never stored"
        raise BadArgument("input", why, "give it again, or an empty one to go without")
    options["input"] = input
    if pass_fds is None and now.get("pass_fds"):
        passed = ", ".join(map(str, now["pass_fds"]))
        raise BadArgument("pass_fds", f"{passed} were passed at the first start", "pass them again, or none: []")
    options["pass_fds"] = pass_fds
    options.update(_lifetime(files, now, lifetime, owner_pid))
    try:
        await core.end(id, grace=grace)
    except IdentityMismatch:
        # Of a session that is over nothing needs to be proven: its pid is a stranger's, or of before the reboot.
        if (await core.observe(id)).state not in FINAL_STATES:
            raise
    seen, connection = await core.start(files.spec["command"], options, restarted_from=id)
    if connection is not None:
        connection.close()
    return seen


def _environment(now: dict[str, Any], env: Mapping[str, str | None] | None) -> dict[str, str | None]:
    """Variables that were given at the first start must be given again, or stand in the environment that is handed
    on: what they were is not on disk. Those that were taken away are taken away again."""
    given: dict[str, str | None] = {name: None for name in now["env_set"] if name not in now["env_names"]}
    given.update(env or {})
    # What a place has is not known here.
    here = now.get("place") in (None, LOCAL)
    inherited = os.environ if here and not now.get("clean_env") else ()
    missing = [name for name in now["env_set"] if name not in given and name not in inherited]
    if missing:
        raise BadArgument(
            "env",
            f"{', '.join(missing)} were given at the first start, and values are never stored",
            "give them again, or None to go without",
        )
    return given


def _lifetime(files: Files, now: dict[str, Any], lifetime: Lifetime | None, owner_pid: int | None) -> dict[str, Any]:
    if lifetime is None and owner_pid is not None:
        lifetime = "owner"
    wanted = lifetime or now.get("lifetime") or "detached"
    if wanted == "call":
        why = "`call` is the life of a run, and a restart returns at once"
        raise BadArgument("lifetime", why, "give `detached`, or `owner`, or run() it anew")
    if lifetime is None and wanted == "owner":
        owner = now["owner_process"]
        if elsewhere(files) is not None or not tree.same(owner["pid"], owner["start"]):
            why = f"the owner it was bound to, process {owner['pid']}, is gone"
            raise BadArgument("lifetime", why, "give `detached`, or another owner_pid")
        owner_pid = owner["pid"]
    return {"lifetime": wanted, "owner_pid": owner_pid}
