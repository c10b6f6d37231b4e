"""The tools as a model sees them. Every word here is paid for in every request of an agent."""

from __future__ import annotations

from ..parameters import BOOLEAN, INTEGER, NUMBER, PAIRS, STRING, STRINGS, WORDS, Parameter
from ..toolset import Tool
from ..unread import SIGNALS
from .budget import BUDGET, BUDGET_MAX

WAIT_MAX_S = 600

UNTIL = ("exit", "match", "idle", "output", "port", "ready")
STREAMS = ("stdout", "stderr", "tty")

_ID = Parameter("id", STRING, "id, prefix, name or last", required=True, aliases=("ids",))

RUN = Tool(
    "run",
    "Run a command. If it ends within wait_s you get its result; else it runs on in the background and you get its "
    "output so far; other tools take its id or name. Start servers with name and ready. To learn of its end, wait.",
    (
        Parameter("command", WORDS, "shell line, or argv list", required=True),
        Parameter("wait_s", NUMBER, default=10, minimum=0, maximum=WAIT_MAX_S),
        Parameter("name", STRING),
        Parameter("cwd", STRING),
        Parameter("env", PAIRS, "NAME=VALUE"),
        Parameter("tty", BOOLEAN, "for REPLs, full-screen programs", default=False),
        Parameter("stdin", STRING, default="closed", choices=("closed", "open")),
        Parameter("timeout_s", NUMBER, "end it then", above=0),
        Parameter("idle_timeout_s", NUMBER, "end it when silent so long", above=0),
        Parameter("ready", STRING, "answer then: port:3000, http:URL, line:REGEX"),
        Parameter("watch", STRINGS, "signal lines with this text or /regex/"),
        Parameter("notify", STRING, "signal its end", default="auto", choices=("auto", "exit", "failure", "never")),
        Parameter("key", STRING, "at most one runs under it"),
        Parameter("replace", BOOLEAN, "stop the holder of key or name first", default=False),
    ),
    destroys=True,
    opens=True,
)
READ = Tool(
    "read",
    "Output of a session, running or ended. Without since, tail and search: what is new since you last saw it.",
    (
        _ID,
        Parameter("since", STRING, "cursor, such as stdout:2048; 0 is the beginning"),
        Parameter("tail", INTEGER, "last lines", minimum=1, maximum=10_000),
        Parameter("search", STRING, "regex, newest matches first; (?i) ignores case"),
        Parameter("context", INTEGER, "lines around a match", default=2, minimum=0, maximum=50),
        Parameter("stream", STRING, choices=STREAMS),
        Parameter("budget", INTEGER, "characters", default=BUDGET, minimum=200, maximum=BUDGET_MAX),
        Parameter("raw", BOOLEAN, "not folded", default=False),
    ),
    reads=True,
)
WAIT = Tool(
    "wait",
    "Block until the first of these sessions ends or meets the condition; tells which, why, and what is new. An end "
    "always counts. After timeout_s they still run.",
    (
        Parameter("ids", STRINGS, required=True, aliases=("id",)),
        Parameter("until", STRING, default="exit", choices=UNTIL),
        Parameter("pattern", STRING, "match: regex over unseen output; port: number; idle: quiet seconds (2)"),
        Parameter("timeout_s", NUMBER, default=60, minimum=0, maximum=WAIT_MAX_S),
    ),
    reads=True,
)
SEND = Tool(
    "send",
    "Type into a session (tty=true or stdin=open); answers with what came back: new output, or the changed rows of a "
    "terminal. Give one of text, keys, paste, eof.",
    (
        _ID,
        Parameter("text", STRING),
        Parameter("keys", STRINGS, "Enter, C-c, Up, Escape, F5"),
        Parameter("paste", STRING),
        Parameter("eof", BOOLEAN, "end of input"),
        Parameter("submit", BOOLEAN, "Enter after text or paste; default: after text on a terminal"),
        Parameter("wait_s", NUMBER, default=1, minimum=0, maximum=WAIT_MAX_S),
    ),
    # What is typed into a shell is a command like any other.
    destroys=True,
    opens=True,
)
SCREEN = Tool(
    "screen",
    "What a person would see of a terminal session, the cursor as a block; whether it waits for input.",
    (_ID, Parameter("history", INTEGER, "rows above the screen", default=0, minimum=0, maximum=1000)),
    reads=True,
)
STOP = Tool(
    "stop",
    "End sessions with all their processes; tells what it took and what survived.",
    (
        Parameter("ids", STRINGS, aliases=("id",)),
        Parameter("all", BOOLEAN, "all of yours", default=False),
        Parameter("grace_s", NUMBER, "until it is killed", default=5, minimum=0, maximum=WAIT_MAX_S),
    ),
    destroys=True,
    repeats=True,
)
LIST = Tool(
    "list",
    "Your sessions, one line each: id, name, how it stands, command, unread output.",
    (Parameter("all", BOOLEAN, "ended ones too", default=False),),
    reads=True,
)
TOOLS = (RUN, READ, WAIT, SEND, SCREEN, STOP, LIST, SIGNALS)
