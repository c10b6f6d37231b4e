"""What stands in the files below a directory, while others write there."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path


def contents(top: Path) -> Iterator[tuple[Path, bytes]]:
    """Of every plain file that is there. Files of a launcher that rehearses come and go meanwhile."""
    for directory, _, names in os.walk(top):
        for path in (Path(directory, name) for name in names):
            if path.is_file():
                with contextlib.suppress(FileNotFoundError):
                    yield path, path.read_bytes()
