"""The channels to people: `[people.command]` and `[people.webhook.NAME]`, tables of the file only."""

from __future__ import annotations

import re

from ..errors import BadArgument, ConfigError
from ..model.session import shown
from .settings import SETTINGS, nearest_line, unknown

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Literal


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
            table = _table(file, text, path, given, _COMMAND_KEYS)
            found.append((command_channel(table), nearest_line(text, *path)))
        else:
            for name, each in _table(file, text, path, given, None).items():
                path = ("people", kind, name)
                table = _table(file, text, path, each, _WEBHOOK_KEYS)
                found.append((webhook_channel(name, table), nearest_line(text, *path)))
    except ChannelRefused as problem:
        path = path if problem.key is None else (*path, problem.key)
        key = ascii(".".join(path))[1:-1][:120]
        raise ConfigError(file, nearest_line(text, *path), key, problem.why, problem.fix) from None
    return found


def _table(
    file: str, text: str, path: tuple[str, ...], given: object, keys: tuple[str, ...] | None
) -> Mapping[str, object]:
    name = ".".join(path)
    if not isinstance(given, dict):
        fix = f"write [{name}] and its keys below it" if keys else f"write [{name}.NAME] and its keys below it"
        raise ConfigError(file, nearest_line(text, *path), ascii(name)[1:-1][:120], "is a table, not a value", fix)
    for key in given if keys else ():
        if key not in (keys or ()):
            raise unknown(file, nearest_line(text, *path, key), f"{name}.{key}", "key", keys or ())
    return given


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
