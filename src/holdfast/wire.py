"""The protocol between hosts and runners. Its one implementation lives with the runner, which may import nobody."""

from .runner.wire import (
    FRAME_MAX_BYTES,
    LENGTH_BYTES,
    PROTOCOL,
    START_MAX_BYTES,
    UNIT_MAX_BYTES,
    BadFrame,
    Decoder,
    as_text,
    control,
    data,
    frame,
    from_text,
    message,
)

__all__ = [
    "FRAME_MAX_BYTES",
    "LENGTH_BYTES",
    "PROTOCOL",
    "START_MAX_BYTES",
    "UNIT_MAX_BYTES",
    "BadFrame",
    "Decoder",
    "as_text",
    "control",
    "data",
    "frame",
    "from_text",
    "message",
]
