"""`python -I -S .../runner/__main__.py WHAT`: `launcher` (listener on fd 3, lock on fd 4), `runner` (start channel on
fd 3) or `self-test`. No user text ever stands in these arguments."""

# Old interpreters must be able to read this file far enough to refuse.
import os
import sys

if sys.version_info < (3, 9):  # noqa: UP036 - here it is not outdated
    sys.exit("holdfast: a runner needs Python 3.9 or later, and this is " + sys.version.split()[0])

if __package__ in (None, "") and "holdfast" not in sys.modules and not __file__.startswith(sys.path[0] + "/__main__"):
    sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))

from holdfast.runner import launcher

if __name__ == "__main__":
    launcher.main(sys.argv[1:])
