"""The members of every answer, and their types, from which `/openapi.json` has its schemas.

What the library declares (sessions, collections, start options) is described from there. An optional member has the
default ABSENT.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, Union, get_args, get_origin, get_type_hints

from ..core.records import STREAM_NUMBERS
from ..core.signalfile import VARIANTS
from ..model import CAUSES, STATES, STATUSES, Exit, Snapshot
from ..model.options import StartOptions
from .tokens import SCOPES

ABSENT: Any = object()
# Words of closed sets.
if TYPE_CHECKING:
    Scope = str
    Status = str
    Stream = str
    StreamOrAll = str
    Variant = str
else:
    Scope = Literal[SCOPES]
    Status = Literal[STATUSES]
    Stream = Literal[tuple(STREAM_NUMBERS)]
    StreamOrAll = Literal[Stream, "all"]
    Variant = Literal[(*VARIANTS, "unknown")]
Offsets = dict[str, int]
# By stream for `stream=all`, else of the one stream.
Offset = int | Offsets


class Reply:
    """A type declared here; `from_` is the member `from`."""


class Problem(Reply):
    type: str
    title: str
    status: int
    detail: str
    instance: str | None
    fix: str
    request_id: str | None
    errors: list[Fault] = ABSENT


class Fault(Reply):
    pointer: str
    detail: str


# The server itself, login and tokens.


class Ok(Reply):
    ok: bool


class Info(Reply):
    version: str
    instance: str
    features: list[str]
    limits: dict[str, float]
    scopes: list[Scope]
    label: str


class Description(Reply):
    openapi: str
    info: dict[str, str]
    paths: dict[str, Any]
    components: dict[str, Any]


class Places(Reply):
    items: list[Place]
    unavailable: list[Away]


class Place(Reply):
    place: str
    sessions: Offsets


class Away(Reply):
    place: str
    problem: Problem


class Nodes(Reply):
    items: list[Node]


class Node(Reply):
    name: str
    state: Literal["connected", "unreachable"]
    seen_at: str | None
    why: str | None
    version: str | None
    sessions: Offsets
    fingerprint: str
    truncated: bool = ABSENT


class SilentNode(Reply):
    node: str
    why: str
    seen_at: str | None


class Token(Reply):
    id: str
    kind: Literal["page", "token", "link"]
    label: str
    scope: Scope
    sessions: list[str] | None
    owner: str | None
    labels: dict[str, str]
    created_at: str
    used_at: str
    expires_at: str | None


class Tokens(Reply):
    items: list[Token]


class NewToken(Token):
    token: str


class NewLink(Token):
    url: str


class Proof(Reply):
    proof: str
    origin: str


class Ticket(Reply):
    ticket: str
    expires_at: str
    role: Literal["control", "observe"]


# Sessions.


class Session(Snapshot):
    """As `hold status --json` has it."""


class Listed(Session):
    node: str | None = ABSENT


class Sessions(Reply):
    items: list[Listed]
    next: str | None
    unavailable: list[Away | SilentNode]
    unreachable_nodes: Offsets = ABSENT
    truncated: list[str] = ABSENT
    count: int = ABSENT


class Stopped(Session):
    survivors: list[dict[str, Any]]
    survivors_more: int
    signal_id: str | None


class Spec(Reply):
    options: dict[str, Any]
    env_names: list[str]


class Woke(Reply):
    reason: str
    cursor: str
    match: str | None
    signal_id: str | None


class Waited(Woke):
    status: Status
    session: Session


class Typed(Reply):
    accepted: int
    written: int | None
    warnings: list[str]
    status: Status
    cursor: str
    woke: Woke = ABSENT


class StatusOnly(Reply):
    status: Status


class Sent(StatusOnly):
    sent: int


# Their output.


class Page(Reply):
    stream: StreamOrAll
    from_: Offset
    cursor: str
    dropped_before: Offset
    end: Offset
    output_complete: bool
    status: Status
    gaps: list[Gap]
    chunks: list[Chunk] = ABSENT
    text: str = ABSENT
    data: str = ABSENT


class Gap(Reply):
    stream: Stream
    from_: int
    to: int
    reason: str


class Chunk(Reply):
    stream: Stream
    offset: int
    length: int


class OutputPage(Page):
    more: bool
    signal_id: str = ABSENT


class Screen(Reply):
    size: list[int]
    cursor: ScreenCursor
    alt: bool
    title: str
    offset: int
    exact: bool
    mid_update: bool
    history: list[Row]
    rows: list[Row]


class ScreenCursor(Reply):
    row: int
    col: int
    visible: bool
    shape: str


class Row(Reply):
    runs: list[dict[str, Any]]
    wrapped: bool = ABSENT


class Screens(Reply):
    items: list[Thumbnail | NoThumbnail]


class Thumbnail(Reply):
    id: str
    offset: int | str
    size: list[int] | None
    text: str


class NoThumbnail(Reply):
    id: str
    problem: Problem


class Hits(Reply):
    hits: list[Hit]
    next: int | None
    scanned: int
    complete: bool


class Hit(Reply):
    offset: int
    line: int | None
    text: str
    spans: list[list[int]]
    before: list[str]
    after: list[str]


class Frames(Reply):
    items: list[DataFrame | ResizeFrame | Slice]
    next: int | None = ABSENT


class Frame(Reply):
    at: str
    stream: Stream
    offset: int


class DataFrame(Frame):
    kind: Literal["data"]
    length: int


class ResizeFrame(Frame):
    kind: Literal["resize"]
    rows: int
    cols: int


class Slice(Reply):
    from_: str
    bytes: int
    first: Offsets | None
    last: Offsets | None
    marks: list[Mark]


class Mark(Reply):
    kind: Literal["resize", "gap", "signal", "input", "end"]
    at: str
    stream: Stream | None
    offset: int | None
    rows: int = ABSENT
    cols: int = ABSENT
    bytes: int = ABSENT
    reason: str = ABSENT
    id: str = ABSENT
    variant: str = ABSENT
    by: str | None = ABSENT


class Inputs(Reply):
    items: list[Input]


class Input(Reply):
    at: str
    by: str | None
    bytes: int
    offset: int


# Signals.


class Signal(Reply):
    """Beside these it has one member with the name of its variant."""

    v: int
    id: str
    seq: int
    session: str | None
    kind: str | None
    owner: str | None
    attempt: int | None
    at: str
    mono_ns: int
    boot: str
    routed: bool | Literal["auto"]
    snapshot: dict[str, Any]
    variant: Variant


class QueuedSignal(Signal):
    pos: int


class Signals(Reply):
    items: list[QueuedSignal]
    next: str


class Consumer(Reply):
    name: str
    owners: list[str] | Literal["*"]
    variants: list[str] | None
    kinds: list[str] | None
    created_at: str
    used_at: str
    waiting: int
    parked: int


class WaitingSignal(Signal):
    state: str
    why: str | None


class ConsumerPage(Consumer):
    items: list[WaitingSignal]


class Settled(Reply):
    settled: int


# Schemas.


# What the library declares as plain text.
_NAMED: dict[type, dict[str, Any]] = {
    Snapshot: {"state": Literal[STATES], "status": Status, "condition": str},
    Exit: {"cause": Literal[CAUSES]},
}
# Members besides those that are declared: facts of an error, the variant of a signal.
_OPEN: dict[type, Any] = {Problem: True, Signal: {"type": "object"}}
_JSON = {str: "string", int: "integer", float: "number", bool: "boolean", type(None): "null"}
_WORDS = {"Any": Any, "Literal": Literal, "Mapping": Mapping, "Sequence": Sequence}


def schema_of(kind: Any, shapes: dict[str, Any]) -> dict[str, Any]:
    """The JSON schema of a type. Those of classes go into `shapes`, by their names."""
    origin, arguments = get_origin(kind), get_args(kind)
    if kind is Any:
        return {}
    if kind in _JSON:
        return {"type": _JSON[kind]}
    if origin is Literal:
        return {"enum": list(arguments)}
    if origin is Union or type(kind) is type(int | str):
        # JSON has no bytes: they are text there.
        options = [schema_of(each, shapes) for each in arguments if each is not bytes]
        names = [each["type"] for each in options if each.keys() == {"type"}]
        return {"type": names} if len(names) == len(options) else {"anyOf": options}
    if origin in (dict, Mapping):
        return {"type": "object", "additionalProperties": schema_of(arguments[1], shapes)}
    if origin is tuple:
        items = [schema_of(each, shapes) for each in arguments]
        return {"type": "array", "prefixItems": items, "minItems": len(items), "maxItems": len(items)}
    if origin in (list, Sequence):
        return {"type": "array", "items": schema_of(arguments[0], shapes)}
    if kind.__name__ not in shapes:
        shapes[kind.__name__] = {}  # it may have members of its own type
        shapes[kind.__name__].update(_shape(kind, shapes))
    return {"$ref": f"#/components/schemas/{kind.__name__}"}


def _shape(kind: type, shapes: dict[str, Any]) -> dict[str, Any]:
    members = get_type_hints(kind, localns=_WORDS)
    for base, named in _NAMED.items():
        members |= named if issubclass(kind, base) else {}
    open_to = next((more for base, more in _OPEN.items() if issubclass(kind, base)), False)
    return {
        "type": "object",
        "properties": {name.rstrip("_"): schema_of(each, shapes) for name, each in members.items()},
        "required": [name.rstrip("_") for name in members if not _is_optional(kind, name)],
        "additionalProperties": open_to,
    }


def _is_optional(kind: type, name: str) -> bool:
    return any(vars(base).get(name) is ABSENT for base in kind.__mro__)


def option_schema(name: str) -> dict[str, Any]:
    """Of an option of a start."""
    hints = get_type_hints(StartOptions, localns={**_WORDS, "Duration": float | str, "Size": int | str})
    return schema_of(hints[name], {}) if name in hints else {}
