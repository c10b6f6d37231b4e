"""`<home>/breakers/`: the state of each breaker, one small file that whoever holds its lock may change.

That is a runner with a match, a runner that was refused and waits for the end, or a host that claims. So the end is
told once and by somebody, whoever of them dies.
"""

from __future__ import annotations

import errno
import fcntl
import os
import time
from _blake2 import blake2b

from . import clock, jsontext, points, wake
from .breaker import FIRST_MAX_CHARS, FURTHER_CHARS, Breaker
from .signalfile import SignalFile

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable

    from .breaker import Notice

DIRECTORY = "breakers"
FILE_MAX_BYTES = 8 << 10
# The command must not wait for its watch.
_LOCK_WAIT_S = 0.010
_LOCK_STEP_S = 0.001
# The disk, or another writer of the home's stream, kept us from telling.
_AGAIN_S = 1.0
_SESSION_FIELDS = ("id", "matches", "first", "stream", "offset")


class Breakers:
    """What a runner asks before it tells of matches, and a host before it claims."""

    def __init__(
        self,
        home: str,
        runtime: str,
        boot: str,
        *,
        say: Callable[[str], None] = lambda _text: None,
        told: Callable[[str, dict[str, Any]], None] = lambda _variant, _record: None,
        now_ms: Callable[[], int] = lambda: clock.mono_ns() // 1_000_000,
    ) -> None:
        self.home = home
        self.runtime = runtime
        self.boot = boot
        self.say = say
        # Called with what is in the queue now.
        self.told = told
        self.now_ms = now_ms
        # Admitted because the file could not be had in time.
        self.unasked = 0

    def admit(self, owner: str | None, notice: Notice, settings: dict[str, Any]) -> float | None:
        """None when the notice may pass; else in how many seconds `release` is worth a try."""
        try:
            with _File(self, _scope(owner, settings)) as file:
                return self._admit(file, notice, settings)
        except (OSError, _Busy) as problem:
            self.unasked += 1
            self.say(f"a match was told without asking the breaker: {problem}")
            return None

    def release(self, owner: str | None, settings: dict[str, Any]) -> float | None:
        """Tell of its end, if that is due and nobody did. In how many seconds to try again, if at all."""
        return self._release(_name(_scope(owner, settings)))

    def release_all(self) -> float | None:
        """Of every scope. In how many seconds the next is due."""
        try:
            names = os.listdir(os.path.join(self.home, DIRECTORY))
        except OSError:
            return None
        waits = [wait_s for wait_s in map(self._release, names) if wait_s is not None]
        return min(waits, default=None)

    def _admit(self, file: _File, notice: Notice, settings: dict[str, Any]) -> float | None:
        now = self.now_ms()
        if file.breaker.is_due(now) and self._tell(file, "released"):
            file.breaker = Breaker()
        file.window = int(settings["window"] * 1000)
        cooldown = int(settings["cooldown"] * 1000)
        admitted = file.breaker.admit(notice, now, most=settings["max"], window=file.window, cooldown=cooldown)
        file.save()
        if admitted:
            return None
        if not file.breaker.told and self._tell(file, "tripped"):
            file.breaker.told = True
            file.save()
        assert file.breaker.until is not None
        return max(0, file.breaker.until - now) / 1000 or _AGAIN_S

    def _release(self, name: str) -> float | None:
        try:
            with _File(self, name) as file:
                now, until = self.now_ms(), file.breaker.until
                if until is not None and now < until:
                    return (until - now) / 1000
                if until is not None and not self._tell(file, "released"):
                    return _AGAIN_S
                if until is not None or not any(at > now - file.window for at in file.breaker.admitted):
                    file.remove()
        except FileNotFoundError:
            pass
        except (OSError, _Busy):
            return _AGAIN_S
        return None

    def _tell(self, file: _File, state: str) -> bool:
        """In the home's own stream, with the breaker locked: whoever comes next finds it told."""
        breaker, owner = file.breaker, file.scope["owner"]
        assert breaker.until is not None
        until = clock.rfc3339(clock.wall_ns() + (breaker.until - self.now_ms()) * 1_000_000)
        fields = {"state": state, "scope": file.scope["scope"], "until": until, **breaker.tally()}
        try:
            if points.ACTIVE:
                points.hit("breaker.tell")
            home = os.open(self.home, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                stream = _patiently(lambda: SignalFile(home, None, self.boot, take_over=True))
                try:
                    nobody = {"kind": None, "attempt": None, "snapshot": None}
                    record = stream.write("overflow", fields, owner=owner, routed=True, **nobody)
                    told = not stream.blocked
                finally:
                    stream.close()
            finally:
                os.close(home)
        except (OSError, _Busy) as problem:
            self.say(f"an overflow of watches could not be told: {problem}")
            return False
        if told:
            wake.call(self.runtime, owner, None, record["seq"])
            self.told("overflow", record)
        return told


class _Busy(Exception):
    pass


class _File:
    """One breaker under its lock. One that cannot be read is begun anew, and that is said. With a scope the file is
    made where there is none; by its name alone it must be there."""

    def __init__(self, breakers: Breakers, scope: dict[str, Any] | str) -> None:
        self._breakers = breakers
        self._may_make = isinstance(scope, dict)
        self.scope = scope if isinstance(scope, dict) else {"scope": "home", "owner": None}
        name = _name(scope) if isinstance(scope, dict) else scope
        self._path = os.path.join(breakers.home, DIRECTORY, name)
        self.breaker = Breaker()
        # How long what was admitted counts.
        self.window = 0

    def __enter__(self) -> _File:
        self._fd: int = _patiently(self._lock)
        try:
            raw = os.pread(self._fd, FILE_MAX_BYTES + 1, 0)
        except BaseException:
            os.close(self._fd)
            raise
        if raw:
            try:
                self._read(jsontext.read(raw))
            except (ValueError, TypeError, KeyError, RecursionError):
                self.breaker = Breaker()
                self._breakers.say(f"{self._path} could not be read: that breaker begins anew")
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._fd)

    def save(self) -> None:
        for first_chars in (FIRST_MAX_CHARS, 40, 20, 8, 4, 2, 0):
            raw = self._written(first_chars)
            if len(raw) <= FILE_MAX_BYTES:
                break
        os.pwrite(self._fd, raw, 0)
        os.ftruncate(self._fd, len(raw))

    def remove(self) -> None:
        """Whoever waits for the lock sees that the name is gone, and makes a new one."""
        os.unlink(self._path)

    def _lock(self) -> int:
        flags = os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | (os.O_CREAT if self._may_make else 0)
        while True:
            try:
                fd = os.open(self._path, flags, 0o600)
            except FileNotFoundError:
                if not self._may_make:
                    raise
                os.makedirs(os.path.dirname(self._path), 0o700, exist_ok=True)
                continue
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                found, there = os.fstat(fd), os.stat(self._path, follow_symlinks=False)
            except FileNotFoundError:
                os.close(fd)  # taken away between our open and our lock
                continue
            except BaseException:
                os.close(fd)
                raise
            if (found.st_dev, found.st_ino) == (there.st_dev, there.st_ino):
                return fd
            os.close(fd)

    def _read(self, found: dict[str, Any]) -> None:
        breaker = Breaker()
        breaker.told = bool(found["told"])
        breaker.suppressed, further = int(found["suppressed"]), str(found.get("further", ""))
        starts = range(0, len(further), FURTHER_CHARS)
        breaker.further = dict.fromkeys(further[start : start + FURTHER_CHARS] for start in starts)
        breaker.sessions = [dict(zip(_SESSION_FIELDS, session)) for session in found["sessions"]]
        same_boot = found["boot"] == self._breakers.boot
        if found["until"] is not None:
            # Of another boot its time is over for sure.
            breaker.until = int(found["until"]) if same_boot else 0
        elif same_boot:
            at = 0
            for step in found["admitted"]:
                at += int(step)
                breaker.admitted.append(at)
        if not self._may_make:
            self.scope = {"scope": found["scope"], "owner": found["owner"]}
        self.window = int(found["window"])
        self.breaker = breaker

    def _written(self, first_chars: int) -> bytes:
        breaker = self.breaker
        sessions = [[each[field] for field in _SESSION_FIELDS] for each in breaker.sessions]
        for session in sessions:
            session[2] = session[2][:first_chars]
        record = {
            "v": 1,
            **self.scope,
            "boot": self._breakers.boot,
            "until": breaker.until,
            "told": breaker.told,
            "suppressed": breaker.suppressed,
            "further": "".join(breaker.further),
            "window": self.window,
            # As steps, and sessions without the names of their fields: so they fit, whatever the limits are.
            "admitted": [at - before for at, before in zip(breaker.admitted, [0, *breaker.admitted])],
            "sessions": sessions,
        }
        return jsontext.write(record).encode() + b"\n"


def _scope(owner: str | None, settings: dict[str, Any]) -> dict[str, Any]:
    is_home = settings["scope"] == "home"
    return {"scope": "home" if is_home else "owner", "owner": None if is_home else owner}


def _name(scope: dict[str, Any]) -> str:
    if scope["scope"] == "home":
        return "home"
    owner = scope["owner"]
    # Sessions without an owner share one.
    text = b"" if owner is None else b"=" + owner.encode("utf-8", "surrogatepass")
    return blake2b(text, digest_size=16).hexdigest()


def _patiently(lock: Callable[[], Any]) -> Any:
    deadline = time.monotonic() + _LOCK_WAIT_S
    while True:
        try:
            return lock()
        except OSError as problem:
            if problem.errno != errno.EAGAIN:
                raise
            if time.monotonic() >= deadline:
                raise _Busy("another holds its lock") from None
        time.sleep(_LOCK_STEP_S)
