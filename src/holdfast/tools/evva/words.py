"""The words of this family as constants: kinds, statuses, ops of a change; and the names of the daemon tools."""

from __future__ import annotations

from ...daemons.observers import DOMAIN
from ...model import COMPLETED, FAILED, KILLED, PENDING, RUNNING

__all__ = [
    "DOMAIN",
    "KINDS",
    "KIND_DREAM",
    "KIND_IN_PROCESS_TEAMMATE",
    "KIND_LOCAL_AGENT",
    "KIND_LOCAL_BASH",
    "KIND_LOCAL_WORKFLOW",
    "KIND_LSP",
    "KIND_MONITOR",
    "KIND_REMOTE_AGENT",
    "OP_ADDED",
    "OP_EVENT",
    "OP_REMOVED",
    "STATUSES",
    "STATUS_COMPLETED",
    "STATUS_FAILED",
    "STATUS_KILLED",
    "STATUS_PENDING",
    "STATUS_RUNNING",
    "TERMINAL",
    "is_terminal",
    "names",
]

KIND_LOCAL_BASH = "local_bash"
KIND_MONITOR = "monitor"
KIND_LOCAL_AGENT = "local_agent"
KIND_LSP = "lsp"
# Reserved: a host may register its own objects of these kinds; nothing here starts one.
KIND_REMOTE_AGENT = "remote_agent"
KIND_IN_PROCESS_TEAMMATE = "in_process_teammate"
KIND_LOCAL_WORKFLOW = "local_workflow"
KIND_DREAM = "dream"
RESERVED = (KIND_REMOTE_AGENT, KIND_IN_PROCESS_TEAMMATE, KIND_LOCAL_WORKFLOW, KIND_DREAM)
KINDS = (KIND_LOCAL_BASH, KIND_MONITOR, KIND_LOCAL_AGENT, KIND_LSP, *RESERVED)

STATUS_PENDING = PENDING
STATUS_RUNNING = RUNNING
STATUS_COMPLETED = COMPLETED
STATUS_FAILED = FAILED
STATUS_KILLED = KILLED
TERMINAL = (STATUS_COMPLETED, STATUS_FAILED, STATUS_KILLED)
STATUSES = (STATUS_PENDING, STATUS_RUNNING, *TERMINAL)

OP_ADDED = "added"
OP_REMOVED = "removed"
OP_EVENT = "event"

_TOOLS = ("daemon_list", "daemon_output", "daemon_stop")


def is_terminal(status: str) -> bool:
    return status in TERMINAL


def names() -> list[str]:
    """The tools that list, read and stop daemons."""
    return list(_TOOLS)
