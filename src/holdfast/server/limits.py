"""What one server takes on, and what one client may ask of it."""

from __future__ import annotations

MIB = 1 << 20

# Connections that have shown a valid token; `serving.door` limits the others.
CONNECTIONS = 512
CONNECTIONS_PER_PEER = 128
HEADER_BYTES = 16 * 1024
HEADER_S = 10.0
BODY_BYTES = MIB
BODY_S = 10.0
FRAME_BYTES = MIB
PING_INTERVAL_S = 20.0
PONG_S = 20.0
TICKETS = 1024
TICKET_S = 30.0

# What requests under way get when the server is told to leave.
LEAVING_S = 5.0


def told() -> dict[str, float]:
    """As `/v1/info` tells them."""
    return {
        "connections": CONNECTIONS,
        "connections_per_peer": CONNECTIONS_PER_PEER,
        "header_bytes": HEADER_BYTES,
        "body_bytes": BODY_BYTES,
        "frame_bytes": FRAME_BYTES,
        "tickets": TICKETS,
        "ticket_s": TICKET_S,
    }
