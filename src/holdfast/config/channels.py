"""Tables of the file only: the channels to people, `[people.command]` and `[people.webhook.NAME]`, and the
configured places, `[places.NAME]`."""

from __future__ import annotations

import re

from ..core import records
from ..errors import BadArgument, ConfigError
from ..model.session import shown
from .settings import SETTINGS, checked_table, nearest_line

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any, Literal


PLACEHOLDERS = (
    *("title", "body", "kind", "status", "session", "name", "owner", "code", "cause", "line", "url", "place"),
)
# Braces around anything else, JSON say, are text.
PLACEHOLDER = re.compile(r"\{([A-Za-z_][A-Za-z0-9_]*)\}")

# The name of its consumer is `people:webhook:<name>`, of at most 64 characters.
_WEBHOOK_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,39}")
_NAME_FIX = "use 1 to 40 of a-z, 0-9, dot, dash and underscore, the first a letter or digit"
_URL_FIX = "such as https://example.org/hooks/holdfast"
_LOOPBACK = re.compile(r"localhost|127(\.[0-9]{1,3}){3}|::1")
_LONGEST_ARGUMENT = 4096
_EVENTS = next(setting for setting in SETTINGS if setting.name == "people.events")


class CommandChannel:
    """A program that is called for each notice. `events` is None for those of [people]."""

    __slots__ = ("argv", "events")

    kind: Literal["command"] = "command"
    table = "people.command"

    def __init__(self, argv: tuple[str, ...], events: tuple[str, ...] | None) -> None:
        self.argv = argv
        self.events = events

    def to_json(self) -> dict[str, object]:
        return {"argv": self.argv, "events": self.events}


class WebhookChannel:
    """An address to which each notice is posted, signed with the secret in a file."""

    __slots__ = ("events", "name", "secret_file", "url")

    kind: Literal["webhook"] = "webhook"

    def __init__(self, name: str, url: str, secret_file: str, events: tuple[str, ...] | None) -> None:
        self.name = name
        self.url = url
        self.secret_file = secret_file
        self.events = events

    @property
    def table(self) -> str:
        return f"people.webhook.{self.name}"

    @property
    def shown_url(self) -> str:
        """Without path and query: for some services these are the secret."""
        from urllib.parse import urlsplit

        found = urlsplit(self.url)
        return f"{found.scheme}://{found.netloc}/..."

    def to_json(self) -> dict[str, object]:
        return {"url": self.shown_url, "secret_file": self.secret_file, "events": self.events}


class OwnPlace:
    """A command that runs what follows it in another place, with our stdin and stdout."""

    __slots__ = ("argv", "name")

    kind: Literal["place"] = "place"

    def __init__(self, name: str, argv: tuple[str, ...]) -> None:
        self.name = name
        self.argv = argv

    @property
    def table(self) -> str:
        return f"places.{self.name}"

    def to_json(self) -> dict[str, object]:
        return {"argv": self.argv}


class ChannelRefused(Exception):
    """What is wrong with which key of a table; `key` is None for the table itself."""

    def __init__(self, key: str | None, why: str, fix: str) -> None:
        super().__init__(why)
        self.key = key
        self.why = why
        self.fix = fix


_COMMAND_KEYS = ("argv", "events")
_WEBHOOK_KEYS = ("url", "secret_file", "events")


def read_channels(
    file: str, text: str, kind: str, given: object
) -> list[tuple[CommandChannel | WebhookChannel, int | None]]:
    """The channels below `people.<kind>`, each with its line; invalid ones are errors with their place."""
    path: tuple[str, ...] = ("people", kind)
    found: list[tuple[CommandChannel | WebhookChannel, int | None]] = []
    try:
        if kind == "command":
            table = checked_table(file, text, path, given, _COMMAND_KEYS)
            found.append((command_channel(table), nearest_line(text, *path)))
        else:
            for name, each in checked_table(file, text, path, given, None).items():
                path = ("people", kind, name)
                table = checked_table(file, text, path, each, _WEBHOOK_KEYS)
                found.append((webhook_channel(name, table), nearest_line(text, *path)))
    except ChannelRefused as problem:
        path = path if problem.key is None else (*path, problem.key)
        key = ascii(".".join(path))[1:-1][:120]
        raise ConfigError(file, nearest_line(text, *path), key, problem.why, problem.fix) from None
    return found


def read_place(file: str, text: str, name: str, given: object) -> tuple[OwnPlace, int | None]:
    """The place of `[places.NAME]`, with its line."""
    path = ("places", name)
    argv = checked_table(file, text, path, given, ("argv",)).get("argv")
    key = ascii(".".join(path))[1:-1][:120]
    if not _WEBHOOK_NAME.fullmatch(name) or name == "local":
        raise ConfigError(file, nearest_line(text, *path), key, "not a valid name for a place", _NAME_FIX)
    if not isinstance(argv, list) or not argv or not all(isinstance(each, str) and "\0" not in each for each in argv):
        fix = 'such as argv = ["kubectl", "exec", "-i", "web-0", "--"]'
        raise ConfigError(
            file, nearest_line(text, *path, "argv"), f"{key}.argv", "not a list of a program and its arguments", fix
        )
    return OwnPlace(name, tuple(argv)), nearest_line(text, *path)


def command_channel(table: Mapping[str, object]) -> CommandChannel:
    """From `[people.command]`."""
    argv = table.get("argv")
    example = 'such as argv = ["notify-send", "{title}", "{body}"]'
    if not isinstance(argv, list) or not argv:
        raise ChannelRefused("argv" if "argv" in table else None, "not a list of a program and its arguments", example)
    for argument in argv:
        if not isinstance(argument, str) or "\0" in argument or len(argument) > _LONGEST_ARGUMENT:
            raise ChannelRefused("argv", f"{shown(argument)} is not an argument", example)
        for name in PLACEHOLDER.findall(argument):
            if name not in PLACEHOLDERS:
                known = "known are " + ", ".join("{" + each + "}" for each in PLACEHOLDERS)
                raise ChannelRefused("argv", "unknown placeholder {" + name[:40] + "}", known)
    if not argv[0] or PLACEHOLDER.search(argv[0]):
        raise ChannelRefused("argv", "the program cannot be a placeholder", example)
    return CommandChannel(tuple(argv), _events(table))


def webhook_channel(name: str, table: Mapping[str, object]) -> WebhookChannel:
    """From `[people.webhook.NAME]`."""
    if not _WEBHOOK_NAME.fullmatch(name):
        raise ChannelRefused(None, "not a valid name for a webhook", _NAME_FIX)
    for key in ("url", "secret_file"):
        if key not in table:
            raise ChannelRefused(None, f"{key} is missing", f"write {key} below it")
    secret_file = table["secret_file"]
    if not isinstance(secret_file, str) or not secret_file.startswith("/") or "\0" in secret_file:
        fix = "name a file of mode 0600 that holds the secret"
        raise ChannelRefused("secret_file", f"{shown(secret_file)} is not an absolute path", fix)
    return WebhookChannel(name, _url(table["url"]), secret_file, _events(table))


def _url(given: object) -> str:
    from urllib.parse import urlsplit

    try:
        if not isinstance(given, str) or not given.isascii() or not given.isprintable() or " " in given:
            raise ValueError
        found = urlsplit(given)
        host, _ = found.hostname or "", found.port
    except ValueError:
        raise ChannelRefused("url", f"{shown(given)} is not an address", _URL_FIX) from None
    if found.scheme not in ("http", "https") or not host:
        raise ChannelRefused("url", f"{shown(given)} is not an http address", _URL_FIX)
    if found.username is not None or found.password is not None or found.fragment:
        raise ChannelRefused("url", "must not contain a user, a password or a fragment", _URL_FIX)
    if found.scheme == "http" and not _LOOPBACK.fullmatch(host):
        raise ChannelRefused("url", "http is allowed only for this machine itself", "use https")
    return given


def _events(table: Mapping[str, object]) -> tuple[str, ...] | None:
    if "events" not in table:
        return None
    try:
        found = _EVENTS.value(table["events"])
    except BadArgument as problem:
        raise ChannelRefused("events", problem.why, problem.fix) from None
    return tuple(str(event) for event in found) if isinstance(found, tuple) else ()


# Setting up a channel from the command line.


# Words that mean something to a shell alone: a program would get them as arguments, and say nothing.
_FOR_A_SHELL = re.compile(r"[|&;]+|[0-9&]?>\S*|\S+;")


def add_command(file: str, line: str, events: tuple[str, ...] | None) -> CommandChannel:
    """Write `[people.command]`: a program and its arguments as a shell would split them. Without a placeholder, title
    and body are appended."""
    import shlex

    try:
        argv = shlex.split(line)
    except ValueError as problem:
        raise BadArgument("--command", str(problem).lower(), "quote the whole command once") from None
    if not argv or not argv[0]:
        raise BadArgument("--command", "is empty", "name a program, such as notify-send")
    if any(_FOR_A_SHELL.fullmatch(word) for word in argv):
        fix = "put the line into a script, which gets the title as $1 and the body as $2, and name the script"
        raise BadArgument("--command", "is a program and its arguments, and no shell reads it", fix)
    if not any(PLACEHOLDER.search(word) for word in argv):
        argv += ["{title}", "{body}"]
    try:
        channel = command_channel({"argv": argv} | ({"events": list(events)} if events else {}))
    except ChannelRefused as problem:
        raise BadArgument("--command", problem.why, problem.fix) from None
    write_table(file, ("people", "command"), {"argv": channel.argv, "events": channel.events})
    return channel


def add_webhook(file: str, url: str, events: tuple[str, ...] | None) -> WebhookChannel:
    """Write `[people.webhook.HOST]`, and its secret into a file beside the configuration, unless there is one."""
    import os
    import secrets
    from urllib.parse import urlsplit

    try:
        name = (urlsplit(_url(url)).hostname or "")[:40]
        name = name if _WEBHOOK_NAME.fullmatch(name) else "webhook"
        secret = os.path.join(os.path.dirname(file), f"{name}.secret")
        table = {"url": url, "secret_file": secret} | ({"events": list(events)} if events else {})
        channel = webhook_channel(name, table)
    except ChannelRefused as problem:
        raise BadArgument("--webhook", problem.why, problem.fix) from None
    os.makedirs(os.path.dirname(file), exist_ok=True)
    records.new_once(None, secret, secrets.token_hex(32).encode() + b"\n")
    write_table(file, ("people", "webhook", name), {"url": url, "secret_file": secret, "events": channel.events})
    return channel


def write_table(file: str, path: tuple[str, ...], values: Mapping[str, str | tuple[str, ...] | None]) -> None:
    """Write the table at this path into the configuration, in the place of the one that is there. Everything else
    stays as it is; ConfigError if that cannot be done."""
    import json
    import os
    import tomllib

    file = os.path.realpath(file)
    try:
        with open(file, encoding="utf-8") as opened:
            before = opened.read()
    except FileNotFoundError:
        before = ""
    # Strings and lists of strings are written alike in JSON and TOML.
    header = ".".join(json.dumps(each) if "." in each else each for each in path)
    table = [f"[{header}]", *(f"{key} = {json.dumps(value)}" for key, value in values.items() if value is not None)]
    lines = before.splitlines()
    start = next((at for at, line in enumerate(lines) if line.strip() == table[0]), len(lines))
    stop = next((at for at in range(start + 1, len(lines)) if lines[at].startswith("[")), len(lines))
    gap = [""] if 0 < start == len(lines) else []
    after = "\n".join([*lines[:start], *gap, *table, *([""] if lines[stop:] else []), *lines[stop:]]) + "\n"
    try:
        kept, written = (_without(tomllib.loads(text), path) for text in (before, after))
    except ValueError:
        kept, written = {}, {"": ""}
    if kept != written:
        fix = "write it there yourself: " + "; ".join(table)
        raise ConfigError(file, None, header, "is written in a way that cannot be changed automatically", fix)
    os.makedirs(os.path.dirname(file), exist_ok=True)
    mode = os.stat(file).st_mode & 0o777 if before else 0o600
    records.replace(None, f"{file}.new", file, after.encode(), durable=True)
    os.chmod(file, mode)


def _without(tables: dict[str, Any], path: tuple[str, ...]) -> dict[str, Any]:
    """All but the table at this path, and tables that it leaves empty."""
    inner = tables.get(path[0])
    rest = _without(inner, path[1:]) if path[1:] and isinstance(inner, dict) else {}
    return {name: each for name, each in {**tables, path[0]: rest}.items() if name != path[0] or each}
