"""`python -I -S .../runner/__main__.py WHAT`: `launcher` (listener on fd 3, lock on fd 4), `runner` (start channel on
fd 3), `runner-at PATH` (connects to its caller at PATH) or `self-test`; for places `deputy` and `next-deputy` (channel
on fd 3), `far`, `ask` and `visit`.

These arguments never contain text of a user, and are replaced by a title, `hold: ID NAME`."""

# Old interpreters must be able to parse enough of this file to refuse.
import os
import sys

if sys.version_info < (3, 9):  # noqa: UP036 - here it is not outdated
    sys.exit("holdfast: a runner needs Python 3.9 or later, and this is " + sys.version.split()[0])

if __package__ in (None, "") and "holdfast" not in sys.modules and not __file__.startswith(sys.path[0] + "/__main__"):
    sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))

if __name__ == "__main__":
    words = [word for word in sys.argv[1:] if word.strip()]
    if words[:1] in (["far"], ["ask"]):
        from holdfast.places import remote_end

        remote_end.run(words)
    elif words == ["visit"]:
        from holdfast.places import visited

        visited.run()
    elif words[:1] in (["deputy"], ["next-deputy"]):
        from holdfast.places import deputy

        deputy.run(words)
    else:
        from holdfast.runner import launcher

        launcher.main(words)
