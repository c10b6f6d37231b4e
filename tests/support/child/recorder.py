"""The program of a bystander: prints `ready`, a line for each signal it gets, `still` when it is asked by a byte on its
stdin, `done` when that ends."""

from __future__ import annotations

import os
import signal


def note(number: int, _: object) -> None:
    try:
        name = signal.Signals(number).name
    except ValueError:
        name = str(number)
    os.write(1, name.removeprefix("SIG").encode() + b"\n")


def main() -> None:
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        signal.signal(number, note)
    os.write(1, b"ready\n")
    while os.read(0, 4096):
        os.write(1, b"still\n")
    os.write(1, b"done\n")


if __name__ == "__main__":
    main()
