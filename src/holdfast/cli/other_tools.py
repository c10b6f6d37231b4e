"""Hints for commands and options of tmux, screen, docker, process-compose and pueue: what to type with `hold` instead.

Read only when the command line has neither."""

from __future__ import annotations

# What to type here, and the commands of other tools that do it there.
_COMMANDS = {
    "hold run -t --name NAME -- bash": "new new-session new-window neww split-window splitw create",
    "hold start -- CMD": "add enqueue spawn daemon bg",
    "hold attach NAME": "a at attach-session switch-client resume fg reattach",
    "hold ls": "list list-sessions list-windows lsw jobs images container",
    "hold ls -a": "history",
    "hold status NAME": "inspect show info has-session has describe",
    "hold logs -f NAME": "follow tail watch",
    "hold logs NAME": "log pipe-pane pipep copy-mode output cat journal",
    "hold screen NAME": "capture-pane capturep hardcopy display",
    "hold submit NAME TEXT": "send-keys send-key stuff type",
    "hold wait NAME": "wait-for",
    "hold rename NAME NEW": "rename-session rename-window",
    "hold restart NAME": "respawn-pane respawn-window respawnp reload",
    "hold stop NAME": "kill-session kill-window kill-pane terminate quit end",
    "hold stop --all": "kill-server",
    "hold kill -s STOP NAME": "pause suspend freeze",
    "hold kill -s CONT NAME": "unpause thaw continue",
    "hold rm NAME": "remove delete del",
    "hold prune": "clean clear system",
    "hold top": "monitor monit tui",
    "hold up": "compose project",
    "hold ps": "process processes services",
    "hold serve --open": "ui web dashboard gui",
    "hold signals --follow": "events",
}
# Where one command does not replace it.
_NOTES = {
    "detach": "`ctrl-] d` leaves a session that you are attached to; it keeps running",
    "exec": "not needed: the command is an ordinary process of this machine; `hold submit NAME TEXT` types into it",
    "stats": "did you mean `hold status`? `hold top` shows CPU and memory",
    "parallel": "there is no queue: every `hold start` runs at once",
    "queue": "there is no queue: every `hold start` runs at once",
    "disown": "a command has to be started by Holdfast: `hold start -- CMD`",
    "start-server": "nothing is needed: no server has to run",
}
_NOTES["detach-client"] = _NOTES["detach"]

_BACKGROUND = "`hold start -- CMD` starts it in the background"
_NO_CONTAINER = "leave it out: there is no container, and the command runs on this machine as your user"
_KEPT = "leave it out: it stays in `hold ls -a` with its output, and `hold rm NAME` removes it"
_PLAIN = "leave it out and give only the name, as in `hold attach work`"
_GRACE = "`--grace 10s` is how long it may take"
_ALL = "`hold ls -a` lists all sessions, `hold ls -q` their ids"
_RUN = {
    "-i -it -ti --interactive": "`hold run -t -- CMD` gives it a terminal",
    "--rm": _KEPT,
    "-e": "`--env NAME=VALUE`",
    "-w --workdir --chdir": "`--cwd DIR`",
    "-m": "`--memory 2G`",
    "-s -n": "`--name NAME`",
    "-v --volume --mount -p --publish -u --user --network --net --entrypoint --gpus --privileged": _NO_CONTAINER,
    "--after": "`hold wait NAME && hold start -- CMD` starts it when NAME has succeeded",
    "--delay": "not available: use `at` or a systemd timer",
    "-g --group": "`--label group=NAME`",
}
# For each command the options of others, and what to do here.
_OPTIONS: dict[str, dict[str, str]] = {
    "run": {**_RUN, "-d --detach": _BACKGROUND},
    "start": {**_RUN, "-d --detach": "leave it out: it starts in the background"},
    "attach": {
        "-t --target -r -x -S": _PLAIN,
        "-d -D": "leave it out: other clients stay attached",
        "--no-stdin --read-only": "`--observe` only watches",
    },
    "screen": {
        "-r -x -d -D -S -dr -dRR -R": "`hold attach NAME` uses its terminal here",
        "-ls -list": "`hold ls` lists sessions",
        "-p -t": _PLAIN,
    },
    "ls": {"--filter": "`--label K=V`, `--status failed` or `--search TEXT`", "--format": "`--json`"},
    "ps": {"-a -A --all -q --quiet": _ALL},
    "logs": {"--tail": "`-n N` prints the last N lines", "-t": "`--timestamps`"},
    "wait": {"-t": _PLAIN},
    "stop": {"-t --time --timeout": _GRACE},
    "restart": {"-t --time --timeout": _GRACE},
    "kill": {"-t": _PLAIN, "-l --list": "the shell's `kill -l` lists the signals"},
    "send": {"-t": _PLAIN},
    "submit": {"-t": _PLAIN},
    "keys": {"-t": _PLAIN, "-l": "`hold send NAME TEXT` writes text, `hold submit NAME TEXT` also presses Enter"},
    "rename": {"-t": _PLAIN},
    "rm": {
        "-f --force": "`hold stop NAME` first, if it is running",
        "-v --volumes": "leave it out: its log is removed too",
    },
    "prune": {"-f --force": "`--yes` does not ask", "-a --all": "leave it out: every finished session is removed"},
    "up": {
        "-d -D --detach --detached": "leave it out: it returns when all are ready, and they keep running",
        "--build --pull --force-recreate": "leave it out: services that changed in the file are restarted",
        "-t --tui": "`hold top` shows them live",
    },
    "down": {
        "-t --time --timeout": _GRACE,
        "-v --volumes --remove-orphans --rmi": "leave it out: nothing else is kept",
    },
}

# The same for words that are not options: `tmux send-keys` has the keys behind the text.
_WORDS: dict[str, dict[str, str]] = {
    "submit": {"Enter C-m": "leave it out: `hold submit` presses Enter"},
    "send": {"Enter C-m": "`hold submit NAME TEXT` presses Enter"},
}


def command(name: str) -> str | None:
    """What to type for a command of another tool."""
    for here, names in _COMMANDS.items():
        if name in names.split():
            return f"type `{here}`"
    return _NOTES.get(name)


def program(name: str) -> str | None:
    """What to type to run a program, as after `nohup`."""
    import shlex
    import shutil

    return f"type `hold run -- {shlex.quote(name)}` to run it" if shutil.which(name) else None


def option(name: str, word: str) -> str | None:
    """What to do in the place of an option or word of another tool. `-n5` is `-n` with its value."""
    rows = {**_OPTIONS.get(name, {}), **_WORDS.get(name, {})}
    known = {each: here for words, here in rows.items() for each in words.split()}
    return known.get(word) or (known.get(word[:2]) if not word.startswith("--") else None)
