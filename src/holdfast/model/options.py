"""The options of a start, as the Python API, the CLI and HTTP share them."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any, Literal, TypedDict

    Duration = float | str
    Size = int | str
else:

    class TypedDict:
        """Stands in for the real one, which takes longer to import than everything else here together."""

        def __init_subclass__(cls, total: bool = True) -> None:
            pass


class StartOptions(TypedDict, total=False):
    name: str | None
    owner: str | None
    labels: Mapping[str, str]
    description: str | None
    kind: str
    key: str | None
    replace: bool
    cwd: str | None
    env: Mapping[str, str | None]
    clean_env: bool
    shell: str | Sequence[str]
    argv0: str | None
    tty: bool | Mapping[str, Any]
    size: tuple[int, int] | str
    stdin: Literal["closed", "open"]
    input: str | bytes | None
    pass_fds: Sequence[int] | Mapping[int, int | None]
    merge_stderr: bool
    timeout: Duration | None
    idle_timeout: Duration | None
    ttl: Duration | None
    lifetime: Literal["detached", "owner", "call"]
    owner_pid: int | None
    memory: Size | None
    limits: Mapping[str, int | tuple[int, int]]
    umask: int
    oom_score_adj: int
    grace: Duration
    stop_ladder: Sequence[Mapping[str, Any]] | None
    notify: Literal["never", "exit", "failure", "auto"]
    notify_people: bool | None
    watch: Sequence[str | Mapping[str, Any]]
    soft: Duration | None
    heartbeat: Duration | None
    ready: str | Sequence[Any] | Mapping[str, Any] | None
    health: str | Mapping[str, Any] | None
    monitor: bool | Mapping[str, Any]
    restart: str | Mapping[str, Any]
    place: str
    metadata: Mapping[str, Any]
    log_cap: Size


START_OPTIONS = frozenset(StartOptions.__annotations__)
