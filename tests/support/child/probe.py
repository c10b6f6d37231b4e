"""Runs the probe as a module, which is compiled once: a script is compiled each time it starts."""

import os
import sys

sys.path.append(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from probe import main  # type: ignore[import-not-found]

main(sys.argv[1:])
