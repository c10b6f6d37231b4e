"""The runner as one file, for machines that have Python and nothing of ours."""

from __future__ import annotations

import os

from .. import __version__
from ..runner import sockets

# One archive for one source: no time of build in it.
_DATE = (1980, 1, 1, 0, 0, 0)


def runner_archive() -> bytes:
    """`python3 -I -S FILE self-test` tries it out, `python3 -I -S FILE runner` takes a start request on descriptor 3.

    Stored and not deflated: a Python without zlib can still say what it lacks.
    """
    import io
    import zipfile

    source = os.path.dirname(os.path.abspath(sockets.__file__))
    files = {"holdfast/__init__.py": f'__version__ = "{__version__}"\n'.encode()}
    for name in sorted(os.listdir(source)):
        if name.endswith(".py"):
            with open(os.path.join(source, name), "rb") as file:
                files[f"holdfast/runner/{name}"] = file.read()
    files["__main__.py"] = files.pop("holdfast/runner/__main__.py")
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_STORED) as archive:
        for name, content in files.items():
            archive.writestr(zipfile.ZipInfo(name, _DATE), content)
    return packed.getvalue()
