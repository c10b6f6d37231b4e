"""Everything this toolset says in words of its own."""

from __future__ import annotations

TERMINAL = (
    "Run a shell command. Foreground (default) waits for the end and returns output and exit code. With "
    "background=true it returns at once with a session_id for the process tool; add notify=true to be notified when it "
    "ends. Processes live on when you or your host restart. The working directory persists between foreground calls; "
    "exported variables do not."
)
COMMAND = "the command line, given to the shell as it is"
BACKGROUND = "return as soon as the command runs; for servers, watchers and long jobs"
TIMEOUT = "foreground: seconds after which the command is stopped, 180 if not given"
DEADLINE = "background: seconds after which the command is stopped; none if not given"
WORKDIR = "directory of this call only; it must exist"
PTY = "run on a terminal (120x30), for programs that want one"
NOTIFY = "background: one notice when it ends, with code and last output"
WATCH_PATTERNS = "background: texts, one notice when a line of output contains one; not together with notify"
HEARTBEAT = "background: a notice with new output at this interval in seconds, at least 60; implies notify"
PERSIST = "background: survive the cleaning up after a task"
STDIN = "open: the process tool can write to it (background default); closed: /dev/null (foreground default)"

PROCESS = (
    "Look after background processes. list; poll: its state, with the newest output; log: output by line numbers; "
    "wait: until it ends; kill: it and everything it started; write: raw input; submit: input and Enter; close: end of "
    "input; ack: take note of its end, so that no notice comes. A session_id may be shortened to a unique prefix."
)
ACTION = "what to do"
SESSION_ID = "as terminal gave it; every action but list needs it"
DATA = "write, submit: the text"
WAIT_TIMEOUT = "wait: seconds to wait at most"
OFFSET = "log: the first line, from 0; the last lines if not given"
LIMIT = "log: how many lines"
SINCE = "poll: the cursor of an earlier poll: everything new since then"
ACKNOWLEDGE = "poll: if it has ended, take note of it, so that no notice comes"
RAW = "log: keep escape sequences and progress output as printed"

ACTIONS = ("list", "poll", "log", "wait", "kill", "write", "submit", "close", "ack")

STARTED = "Background process started"
FINISHED = "Process has already finished"
CUT = "[earlier output cut]"
TRUNCATED = "...(truncated)"
STDIN_CLOSED = "stdin closed"
EOF_SENT = "EOF sent"

NOTIFY_WINS = "notify was given too: one notice comes at the end, none for patterns; leave notify out to watch instead"
NO_DELIVERY = "this host delivers no notices for this session; use process(action='poll') or wait"
HINT_NO_NOTICE = "nothing will tell you when it ends: poll it, or start with notify=true or watch_patterns"
HINT_SURVIVORS = "processes live on after the shell; to keep something running use background=true instead of &"
GONE_DIRECTORY = "the working directory of this task is gone; call terminal(command='cd ~', workdir='/') to leave it"
DETACHED = "its supervisor is gone while the command lives: status and kill work, output up to then can be read"
UNREACHABLE = "its supervisor is alive but does not answer; what it printed can be read"
AWAY = "its place cannot be reached just now; the process runs on there, and what came from there can be read"
STARTING = "it is just being started"
UNHEALTHY = "it runs, but its health check fails; its newest output may say why"
MORE_FOLLOWS = "more output follows: poll again with this cursor"
YIELDED = "still running in the background; a notice comes when it ends, and the process tool can look after it"
YIELDED_SILENTLY = "still running in the background; use process(action='poll') or wait to learn how it ends"
SURVIVED = "not all of it could be ended; use process(action='kill') to try again"
WAIT_INTERRUPTED = "the waiting was interrupted; the process runs on"
HEALTH = {"stale": DETACHED, "unreachable": UNREACHABLE, "starting": STARTING}
NO_SESSION_ID = "session_id is required for {action}"
NOT_FOUND = "No process with ID {ref}"
NO_INPUT_THERE = "its sandbox runs commands to their end and has no stream for input"
LOG_OF = "process(action='log', session_id='{id}') reads what it printed"
STDIN_IS_CLOSED = "stdin of {id} is closed: {why}"
START_OPEN = "terminal(command=..., background=true, stdin='open') starts one that can be written to"
SUPERVISOR_GONE = "the supervisor of {id} is gone while its command lives"
KILL_OF = "process(action='kill', session_id='{id}') ends it"
SUPERVISOR_SILENT = "the supervisor of {id} is alive but does not answer"
STILL_RUNNING = "{id} is still running"
WAIT_OR_KILL = "process(action='wait', session_id='{id}') waits for its end, kill brings it about"
CANNOT_START = "Failed to start background process: {why}"
TIMED_OUT = "[Command timed out after {limit_s:g}s]"
INTERRUPTED = "[Command interrupted]"
TIMEOUT_IGNORED = "timeout={timeout} does not end a background process; give deadline={timeout} for that"
WAIT_OVER = "Waited {waited_s:g}s, process still running"
WAIT_CLAMPED = "Requested wait of {asked}s was clamped to the limit of {allowed}s"
LEFT_OUT = "[... {characters} characters in {lines} lines left out ...]"
DROPPED = "[... {count} bytes of the beginning are no longer kept ...]"
READ_THE_REST = "output was cut; read all of it with process(action='log', session_id='{id}', offset=0)"
REFUSED_SERVER = (
    "this looks like a server, which does not end by itself: terminal(command={command!r}, "
    "background=true) starts it in the background"
)
MANY_RUNNING = "{count} processes are running already; stop those that are not needed"
SAME_RUNNING = "the same command is already running here as {id}"
PROFILE_FAILED = "PATH and exports of a login {program} could not be found out ({why}); those of the host are used"
LOGIN_PATH_FAILED = "the PATH of a login {program} could not be found out ({why}); that of {place} is used"
# Runners of releases up to 0.2 signal it; later ones leave the folding of matches to the drain.
OVERFLOW_TRIPPED = (
    "More than 15 watch match notices in 10s over all processes: further ones are suppressed for 30s and counted."
)
OVERFLOW_RELEASED = "Watch match notices are delivered again; {suppressed} were suppressed."


def unknown_action(action: str) -> str:
    return f"Unknown process action: {action}. Use: {', '.join(ACTIONS)}"


def promoted(command_is_server: bool, waited_s: float) -> str:
    why = "it looks like a server" if command_is_server else "the foreground limit was reached"
    return f"{why}: after {waited_s:g}s it continues in the background"


def still_there(pids: list[int]) -> str:
    named = f"; still alive: {', '.join(map(str, pids))}" if pids else ""
    return f"not all of it could be ended{named}"


def watch_off(reason: str, hits: int, suppressed: int) -> str:
    why = {
        "strikes": "lines matched too often",
        "lifetime": "the limit of match notices is reached",
        "too_slow": "matching took too long",
    }
    counted = f"{hits} match {'notice' if hits == 1 else 'notices'} delivered, {suppressed} matching lines suppressed"
    return (
        f"Watch patterns are switched off: {why.get(reason, reason)} ({counted}). You will be notified when it exits."
    )
