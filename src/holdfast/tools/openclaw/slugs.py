"""Names that a model can say and remember: an adjective and a noun."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

_ADJECTIVES = (
    "amber azure bold brave brisk calm clear cool coral crisp dawn deep eager faint fast fleet fresh gentle glad "
    "golden grand hazel hidden humble ivory jolly keen kind lively lucid lunar marine mellow mild misty neat noble "
    "oaken olive patient plain proud quick quiet rapid royal rustic salty sharp silent silver sleek smooth solar "
    "steady still stone sunny swift tender tidal vivid warm wild winter"
)
_NOUNS = (
    "atlas badger basin beacon birch bloom breeze brook canyon cedar cliff cloud comet coral cove crane creek delta "
    "dune eagle ember falcon fern field fjord forest fox galaxy garden glade grove harbor haven hawk heron island "
    "lagoon lark lotus maple meadow mesa nebula nova oasis ocean orchard otter peak pebble pine prairie raven reef "
    "ridge river sable sage shore sparrow spruce summit thicket trail valley willow wren"
)

_PLAIN_TRIES = 12


def new_slug(is_free: Callable[[str], bool]) -> str:
    """One that nobody bears; with a number behind it once plain ones have become rare."""
    for _ in range(_PLAIN_TRIES):
        slug = f"{secrets.choice(_ADJECTIVES.split())}-{secrets.choice(_NOUNS.split())}"
        if is_free(slug):
            return slug
    number = 2
    while not is_free(f"{slug}-{number}"):
        number += 1
    return f"{slug}-{number}"
