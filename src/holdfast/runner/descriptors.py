"""Descriptors, and what to do about having none: refuse early, and keep one back for the ending."""

from __future__ import annotations

import os

# Loop, signals, directory, lock, log, endpoint, three pipes with both ends, and a few to look around with.
NEEDED = 20


class TooFew(Exception):
    """This process may not open enough files to run a session."""

    def __init__(self, given: int, problem: OSError) -> None:
        super().__init__(f"the runner needs {NEEDED} descriptors and was given {given}: {problem.strerror}")
        self.errno = problem.errno


def make_sure() -> None:
    """TooFew before anything exists, instead of a failure half-way."""
    taken: list[int] = []
    try:
        for _ in range(NEEDED):
            taken.append(os.dup(0))  # noqa: PERF401 - those taken must be known when the next is refused
    except OSError as problem:
        raise TooFew(len(taken), problem) from None
    finally:
        for fd in taken:
            os.close(fd)


class Reserve:
    """Two descriptors kept back (a pidfd and a look at it): within, they are free for the files, looks and signals
    without which no end can be told, even when clients or a lowered limit have taken all the others."""

    def __init__(self) -> None:
        self._fds = [os.dup(0), os.dup(0)]

    def __enter__(self) -> None:
        self.close()

    def __exit__(self, *_: object) -> None:
        try:
            while len(self._fds) < 2:
                self._fds.append(os.dup(0))
        except OSError:
            pass  # the limit sank below even these; the next pass tries again

    def close(self) -> None:
        while self._fds:
            os.close(self._fds.pop())
