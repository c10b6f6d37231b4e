"""`python -m holdfast.signals.deliver`: what runners that were started before this release run to notify people."""

from __future__ import annotations

import sys

from .people.program import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
