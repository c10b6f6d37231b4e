"""A pid that belongs to somebody else by now: source for a program in a pid namespace of its own, where a pid can be
asked for. It runs there as the first process, so it also has to reap.
"""

from __future__ import annotations

from support.levers import namespace_argv

PID_NAMESPACE = namespace_argv("--pid", "--fork", "--mount-proc")

# `end(pid)` kills and reaps; `stranger(pid)` starts another process that has that pid.
STRANGER = """
import os, signal, subprocess

def start(pid):
    with open(f"/proc/{pid}/stat") as file:
        return int(file.read().rpartition(")")[2].split()[19])

last_tick = 0

def end(pid):
    global last_tick
    last_tick = max(last_tick, start(pid))
    os.kill(pid, signal.SIGKILL)
    while os.path.exists(f"/proc/{pid}"):
        try:
            os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            pass

def stranger(pid):
    for _ in range(1000):
        with open("/proc/sys/kernel/ns_last_pid", "w") as file:
            file.write(str(pid - 1))
        other = subprocess.Popen(["sleep", "600"])
        # Within one tick of the kernel's clock even the start times are the same.
        if other.pid == pid and start(pid) > last_tick:
            return other
        other.kill()
        other.wait()
    raise SystemExit(f"pid {pid} was never free")
"""
