"""Every setting there is, by section: its default, its bounds and its meaning are here and nowhere else."""

from __future__ import annotations

from .setting import (
    CODES,
    COUNT,
    DURATION,
    DURATIONS,
    NAMES,
    PATH,
    PROMPTS,
    SIZE,
    SWITCH,
    TEXT,
    WORD,
    WORDS,
    Setting,
)

# What people can be told: a variant of a signal, or one phase or outcome of `lifecycle`.
# `ended` is every end, `failed` one that nobody asked for, `limit` one by a limit that was set at the start.
PEOPLE_EVENTS = (
    *("ended", "failed", "limit", "restarting", "event", "watch", "watch_disabled", "overflow", "heartbeat"),
    *("needs_input", "deadline", "ready", "health", "gap", "survivors"),
)

_SIGNALS = (
    Setting("signals", "file_bytes", SIZE, "4MiB", "Size at which a session's signal file rotates.", low=64 << 10),
    Setting(
        "signals", "answer_grace", DURATION, "1s", "How long a waiter has to confirm an end it was given.", high=60
    ),
    Setting("signals", "claim_limit", COUNT, 1000, "Signals of one claim.", low=1, high=100_000),
    Setting("signals", "lease", DURATION, "15m", "How long a living holder keeps a claim without a call.", low=1),
    Setting(
        "signals",
        "release_waits",
        DURATIONS,
        "1s, 5s, 30s, 60s",
        "Time until a released signal comes again: the first, second, ... time; the last from then on.",
    ),
    Setting("signals", "alone_after", COUNT, 5, "From this failed delivery on a signal comes alone.", low=1),
    Setting("signals", "park_after", COUNT, 8, "After so many failed deliveries a signal is parked.", low=1),
    Setting("signals", "keep_unused", DURATION, "30d", "How long an unused consumer is kept.", low=60),
    Setting("signals", "wake_gather", DURATION, "200ms", "How long a burst is joined before a turn.", high=60),
    Setting("signals", "wake_sockets", COUNT, 64, "Wake sockets per owner.", low=1, high=1024),
    Setting("signals", "watched_runners", COUNT, 256, "Runners whose death wakes a waiting consumer.", high=4096),
)

_DRAIN = (
    Setting("drain", "chars", COUNT, 8000, "Characters of one message.", low=500, high=1_000_000),
    Setting("drain", "lines", COUNT, 200, "Lines of one message.", low=10, high=100_000),
    Setting("drain", "session_chars", COUNT, 3000, "Characters per session.", low=200, high=1_000_000),
    Setting("drain", "session_lines", COUNT, 50, "Lines per session.", low=1, high=100_000),
    Setting("drain", "line_chars", COUNT, 500, "Characters per line.", low=20, high=100_000),
    Setting("drain", "label_chars", COUNT, 120, "Characters of a name, command, label or pattern.", low=20, high=1000),
    Setting("drain", "failed_lines", COUNT, 30, "Lines of output shown of a failed or killed session.", high=1000),
    Setting("drain", "failed_chars", COUNT, 2000, "Characters of output shown of it.", high=100_000),
    Setting("drain", "completed_lines", COUNT, 5, "Lines of output shown of a completed session.", high=1000),
    Setting("drain", "completed_chars", COUNT, 400, "Characters of output shown of it.", high=100_000),
)

_WATCH = (
    Setting("watch", "interval", DURATION, "15s", "Time between two match signals of a session.", low=1),
    Setting("watch", "strikes", COUNT, 3, "Windows in a row with dropped matches that end the watching.", low=1),
    Setting("watch", "lifetime", COUNT, 0, "Match signals of a session after which the watching ends; 0: no limit."),
    Setting("watch", "gather_ms", COUNT, 100, "Milliseconds a match waits for its neighbours.", high=10_000),
    Setting(
        "watch", "partial_ms", COUNT, 500, "Quiet milliseconds until an unfinished line is judged.", low=10, high=60_000
    ),
)

_BREAKER = (
    Setting("breaker", "scope", WORD, "owner", "Whose matches are counted together.", words=("owner", "home")),
    Setting("breaker", "max", COUNT, 15, "Match signals that pass within the window.", low=1, high=1000),
    Setting("breaker", "window", DURATION, "10s", "The window that slides over them.", low=0.1),
    Setting("breaker", "cooldown", DURATION, "30s", "How long none pass after one too many.", low=0.1),
)

_MONITOR = (
    Setting("monitor", "limit", DURATION, "5m", "How long a monitor runs unless it is persistent.", low=1, high=3600),
    Setting("monitor", "batch_ms", COUNT, 200, "Milliseconds whose lines are one event.", low=10, high=10_000),
    Setting("monitor", "bucket", COUNT, 10, "Events that may come at once.", low=1, high=1000),
    Setting("monitor", "refill_s", DURATION, "2s", "Time until one more may come.", low=0.1),
    Setting("monitor", "digest_after", DURATION, "30s", "Time with dropped lines until only digests come.", low=1),
    Setting("monitor", "digest_every", DURATION, "1m", "Time between two digests.", low=1),
    Setting("monitor", "calm", DURATION, "1m", "Time without dropped lines until all come again.", low=1),
    Setting(
        "monitor",
        "on_flood",
        WORD,
        "digest",
        "What a monitor with too many lines meets: digests, or its stop.",
        words=("digest", "stop"),
    ),
)

_SESSION = (
    Setting("session", "heartbeat_floor", DURATION, "1m", "A shorter heartbeat is raised to this.", low=1),
    Setting("session", "ready_timeout", DURATION, "1m", "How long a session may take to be ready.", low=0.1),
    Setting("session", "health_interval", DURATION, "30s", "Time between two looks at a session's health.", low=5),
    Setting("session", "health_misses", COUNT, 3, "Missed looks in a row that make it unhealthy.", low=1, high=100),
)

_PEOPLE = (
    Setting(
        "people",
        "events",
        WORDS,
        "failed, limit, needs_input, overflow",
        "What people are told, unless a channel has its own.",
        words=PEOPLE_EVENTS,
    ),
    Setting("people", "bell", SWITCH, False, "Ring at the terminals of people who are attached."),
    Setting("people", "bell_apart", DURATION, "5s", "Time between two rings."),
    Setting("people", "apart", DURATION, "10s", "Time between two notices about a session; the rest are joined."),
    Setting("people", "attended", DURATION, "1m", "Who typed or looked within this time is told nothing more."),
    Setting("people", "max_age", DURATION, "1h", "An older signal is not told any more.", low=1),
    Setting("people", "timeout", DURATION, "10s", "How long a command or a webhook may take.", low=0.1, high=300),
    Setting("people", "at_once", COUNT, 4, "Deliveries of a channel at the same time.", low=1, high=64),
    Setting(
        "people",
        "retry_waits",
        DURATIONS,
        "1s, 5s, 30s, 120s, 600s",
        "Time until a webhook that failed is tried again; after the last it is given up.",
    ),
)

_RESTART = (
    Setting("restart", "delay", DURATION, "1s", "Time until the first restart; it doubles with each."),
    Setting("restart", "delay_max", DURATION, "1m", "It never gets longer than this."),
    Setting("restart", "reset_after", DURATION, "1m", "After running so long the delay is the first again."),
    Setting("restart", "attempts", COUNT, 5, "Starts within the window; then the session ends.", low=1, high=10_000),
    Setting("restart", "window", DURATION, "10m", "The window over them.", low=1),
    Setting("restart", "success_codes", CODES, "0", "Exit codes that are no failure.", high=255),
    Setting("restart", "final_codes", CODES, "125", "Exit codes after which nothing is restarted.", high=255),
)

SETTINGS = (
    Setting("log", "session_cap", SIZE, "64MiB", "Log kept per session; the oldest goes first.", low=1 << 20),
    Setting("log", "segment", SIZE, "8MiB", "Size of one file of a log.", low=4096),
    Setting("log", "home_cap", SIZE, "4GiB", "Log kept in the whole home; finished sessions go first."),
    Setting("log", "free_floor", SIZE, "256MiB", "Space on the disk that logs leave free."),
    Setting("log", "keep", DURATION, "7d", "How long a session is kept after its exit."),
    Setting("start", "shell", PATH, "/bin/sh", "Runs a command that is given as text."),
    Setting("start", "grace", DURATION, "5s", "Time from the polite signal of a stop to the kill."),
    Setting(
        "start",
        "stdin",
        WORD,
        "closed",
        "Input of a command: none, or a pipe.",
        words=("closed", "open"),
    ),
    Setting(
        "start",
        "oom_score_adj",
        COUNT,
        1000,
        "How early the kernel takes the command when memory runs out.",
        low=-1000,
        high=1000,
    ),
    Setting("terminal", "rows", COUNT, 30, "Height of a terminal that nobody looks at.", low=1, high=500),
    Setting("terminal", "cols", COUNT, 120, "Width of a terminal that nobody looks at.", low=1, high=1000),
    Setting("terminal", "detach_key", TEXT, "ctrl-]", "What `hold attach` listens to, or `none`."),
    Setting(
        "terminal", "history_rows", COUNT, 1000, "Rows above the screen that an attach brings.", low=0, high=100_000
    ),
    Setting("terminal", "enter_delay", DURATION, "150ms", "Time between a submitted text and its Enter.", high=5),
    Setting(
        "terminal",
        "audit_input",
        WORD,
        "off",
        "Keep what is typed, beside who typed when; never while the terminal shows none of it.",
        words=("off", "full"),
    ),
    Setting(
        "terminal",
        "prompts",
        PROMPTS,
        "",
        "What else a question looks like, left of the cursor: a line each, such as `question=^Which one> $`.",
    ),
    Setting("terminal", "prompts_replace", SWITCH, False, "Patterns replace the ones we know of their kind."),
    Setting("launcher", "enabled", SWITCH, True, "Keep a launcher, so that starts are quick."),
    Setting("launcher", "spares", COUNT, 2, "Runners that wait, forked and warm.", low=1, high=64),
    Setting("launcher", "idle", DURATION, "10m", "The launcher leaves after this time without a start."),
    Setting(
        "hosts", "reply_timeout", DURATION, "10s", "How long one runner may take to answer before a stop acts past it."
    ),
    Setting("hosts", "sweep_timeout", DURATION, "2s", "How long all runners together may take in a listing."),
    Setting("hosts", "start_timeout", DURATION, "10s", "How long a start may take until it is answered."),
    Setting("collect", "enabled", SWITCH, True, "Hosts remove old sessions on their own, as `hold gc` does."),
    Setting("collect", "interval", DURATION, "10m", "Time between two collections."),
    Setting("places", "ssh", TEXT, "ssh", "The program that reaches `ssh:HOST`, with its own options."),
    Setting("places", "docker", TEXT, "docker", "The program that reaches `docker:NAME`, with its own options."),
    Setting("places", "podman", TEXT, "podman", "The program that reaches `podman:NAME`, with its own options."),
    Setting("places", "apptainer", TEXT, "apptainer", "The program that reaches `apptainer:NAME`, an instance."),
    Setting("places", "singularity", TEXT, "singularity", "The program that reaches `singularity:NAME`, an instance."),
    Setting("places", "python", TEXT, "python3", "The Python, 3.9 or later, that runs a runner in another place."),
    Setting("places", "timeout", DURATION, "15s", "How long another place may take to answer."),
    Setting("env", "pass", NAMES, "", "More variables of a host that toolsets hand on to commands; never its secrets."),
    Setting("cli", "color", WORD, "auto", "Colours in the terminal.", words=("auto", "always", "never")),
    *_SIGNALS,
    *_DRAIN,
    *_WATCH,
    *_BREAKER,
    *_MONITOR,
    *_SESSION,
    *_PEOPLE,
    *_RESTART,
)
