"""The kernel's signals, by number and by name.

`signal` here is the C module behind the one of the standard library. The enums of the latter make a forked runner
write to some fifty pages that it could have shared with its launcher.
"""

from __future__ import annotations

TYPE_CHECKING = False

if TYPE_CHECKING:
    import signal
else:
    import _signal as signal

__all__ = ["DEFAULTED", "NAMES", "NUMBERS", "signal"]

# Sorted, so that of two names for one number the usual one comes first: SIGCHLD and not SIGCLD.
NUMBERS: dict[str, int] = {
    name: int(getattr(signal, name)) for name in sorted(dir(signal)) if name.startswith("SIG") and name[3] != "_"
}
NAMES: dict[int, str] = {}
for _name, _number in NUMBERS.items():
    NAMES.setdefault(_number, _name)
# A process that we start has the default action for these, whatever we ignore.
DEFAULTED = sorted(signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP})
