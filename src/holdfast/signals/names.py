"""Names of consumers."""

from __future__ import annotations

import re

_NAME = re.compile(r"[a-z0-9][a-z0-9._:-]{0,63}")
RULE = "lower-case letters, digits and ._:- , at most 64, beginning with a letter or digit"
# The consumer of a person at a terminal, who gets everybody's. Made by the first `hold ack`.
PERSON = "cli"


def is_name(text: str) -> bool:
    return _NAME.fullmatch(text) is not None


def default_name(owner: str, family: str = "owner") -> str:
    """The consumer of one owner (`family`: a toolset that has its own); a hash of it where its name would be none."""
    name = f"{family}:{owner}"
    if is_name(name):
        return name
    from hashlib import sha256

    return f"{family}:{sha256(owner.encode('utf-8', 'surrogatepass')).hexdigest()[:32]}"
