"""What a language server is started with: the options of its session, and how it is greeted."""

from __future__ import annotations

import os
from urllib.parse import quote

from .. import __version__
from . import lsp

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from ..host.request import Command
    from ..model import StartOptions

# Healthy for so long, a server is as good as new.
HEALTHY_S = 60.0


def options_for(server: str, max_restarts: int, root: str | None, options: StartOptions) -> StartOptions:
    """What makes a session a language server's, over what else was asked for."""
    metadata = {**options.get("metadata", {}), "server": server, "max_restarts": max_restarts}
    made: dict[str, Any] = {
        **options,
        "kind": "lsp",
        "stdin": "open",
        "lifetime": "owner",
        "cwd": options.get("cwd") or root,
        "ready": {"told": True, "timeout": lsp.INITIALIZE_S},
        "health": {"told": True},
        "restart": {
            "policy": "on-failure",
            # One that leaves without being told to has failed, whatever it says.
            "success_codes": [],
            "in_a_row": max_restarts,
            "reset_after": HEALTHY_S,
            "reset_on_ready": False,
            "attempts": 10_000,
        },
        "metadata": metadata,
    }
    return made  # type: ignore[return-value]


def greeting(root: str | None, given: Mapping[str, Any] | None) -> dict[str, Any]:
    """The parameters of `initialize`: what every server wants, under what the host gave."""
    folder = os.path.abspath(root or os.getcwd())
    uri = "file://" + quote(folder)
    return {
        "processId": os.getpid(),
        "clientInfo": {"name": "holdfast", "version": __version__},
        "rootUri": uri,
        "workspaceFolders": [{"uri": uri, "name": os.path.basename(folder)}],
        "capabilities": {
            "textDocument": {"publishDiagnostics": {"relatedInformation": False}},
            "workspace": {"configuration": True, "workspaceFolders": True},
        },
        **(given or {}),
    }


def name_of(command: Command) -> str:
    """The server as its command calls it."""
    words = command.split() if isinstance(command, str) else command
    return os.path.basename(words[0]) if words and words[0] else "server"
