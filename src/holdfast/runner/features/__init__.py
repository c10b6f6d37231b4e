"""What a session watches for: what it was asked for, and needs-input wherever it can be typed to."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from contextlib import AbstractContextManager
    from typing import Any, Protocol

    from ...core.loop import Loop
    from ..directory import RunnerLog
    from ..log import LogWriter
    from ..process_tree import ProcessTree
    from ..streams import Stdin
    from ..terminal.keyboard import Keyboard
    from ..terminal.terminal import Terminal

    class Emitter(Protocol):
        def emit(
            self, variant: str, fields: dict[str, Any], *, routed: bool | str = True, durable: bool = False
        ) -> object: ...

    class SessionPart(Protocol):
        """The parts of its session that a feature uses."""

        spec: dict[str, Any]
        # What `update` changed of the spec.
        changed: dict[str, Any]
        log: LogWriter
        loop: Loop

        @property
        def signals(self) -> Emitter: ...
        @property
        def runner_log(self) -> RunnerLog: ...
        def current(self, name: str) -> Any:
            """A field of the spec as `update` left it."""

        def write_state(self) -> None: ...
        def stop(self, *, by: str | None) -> None: ...

    class SessionWithProcesses(SessionPart, Protocol):
        """The session of a feature that checks processes, or starts some."""

        @property
        def tree(self) -> ProcessTree: ...
        @property
        def reserve(self) -> AbstractContextManager[None]: ...

    class SessionWithInput(SessionWithProcesses, Protocol):
        """The session of the feature that detects whether the command waits for input."""

        @property
        def terminal(self) -> Terminal | None: ...
        @property
        def stdin(self) -> Stdin | Keyboard: ...


class Feature:
    """The moments of a session that a feature may take part in."""

    def begin(self, attempt: int) -> None:
        """A command was spawned."""

    def on_output(self, stream: str) -> None:
        """The log of `stream` has grown."""

    def pause(self) -> None:
        """The command is gone, and another attempt follows."""
        self.close()

    def finish(self) -> None:
        """The command is gone for good; its end is not recorded yet."""
        self.close()

    def facts(self) -> dict[str, Any]:
        """Fields of the status and of the state record."""
        return {}

    def close(self) -> None:
        """Cancel timers and release descriptors."""
