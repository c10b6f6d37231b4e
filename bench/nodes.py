"""B19: many machines. A view with real nodes, and with a thousand that are simulated up to their own server."""

from __future__ import annotations

import base64
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import ExitStack, contextmanager
from http.client import HTTPConnection
from typing import TYPE_CHECKING

from websockets.sync.client import connect
from websockets.typing import Origin, Subprotocol

import holdfast
from holdfast.home import Home
from holdfast.nodes.own_server import ENVIRONMENT, Logins, configuration, program

from . import many_nodes
from .measure import Spread, interleaved
from .page import stalled_s
from .place import place
from .report import Against, Row

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

    from websockets.sync.client import ClientConnection

_NODES, _SESSIONS = 1000, 100
_KEYS, _ROUNDS = 40, 15
_LOG_BYTES = 64 << 20
_MB = 1e6
_PAGES = 40
_CHANGES = 10
_QUIET_S = _AWAY_S = 60.0
_BOUND_S = 180.0
_HOLD = os.path.join(os.path.dirname(sys.executable), "hold")
_FLOOD = f"import os, sys; os.write(2, b'.'); [os.write(1, os.urandom(1 << 20)) for _ in range({_LOG_BYTES >> 20})]"


@contextmanager
def _waited() -> Iterator[Callable[[], str]]:
    stalled, began = stalled_s(), time.monotonic()
    yield (
        lambda: (
            f"programs waited for a processor in {(stalled_s() - stalled) / (time.monotonic() - began):.0%} of the time"
        )
    )


class _Server:
    """`hold serve` of a home."""

    def __init__(self, env: dict[str, str], stack: ExitStack) -> None:
        self._program = _started(stack, [_HOLD, "serve", "--port", "0"], env)
        assert self._program.stdout is not None
        url = self._program.stdout.readline().split()[0].decode().partition("/#")[0]
        self.pid, self.port = self._program.pid, int(url.rpartition(":")[2])
        with open(os.path.join(env["HOLDFAST_HOME"], "server", "token")) as file:
            self._token = file.read().strip()

    def get(self, target: str, *, method: str = "GET", body: object = None) -> Any:
        return json.loads(self.raw(target, method=method, body=body))

    def raw(self, target: str, *, method: str = "GET", body: object = None) -> bytes:
        headers = {
            "Authorization": f"Bearer hf_home_{self._token}",
            "Content-Type": "application/json",
            "Origin": self.origin,
        }
        connection = HTTPConnection("127.0.0.1", self.port, timeout=_BOUND_S)
        connection.request(method, target, None if body is None else json.dumps(body), headers)
        answer = connection.getresponse().read()
        connection.close()
        return answer

    @property
    def origin(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def attach(self, session: str) -> ClientConnection:
        ticket = self.get(f"/v1{session}/tickets", method="POST", body={"role": "control"})["ticket"]
        address = f"ws://127.0.0.1:{self.port}/v1{session}/attach?ticket={ticket}"
        return connect(address, subprotocols=[Subprotocol("holdfast.v1.json")], origin=Origin(self.origin), proxy=None)


def _started(stack: ExitStack, argv: list[str], env: dict[str, str]) -> subprocess.Popen[bytes]:
    started = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=env)
    stack.callback(_end, started)
    return started


def _end(started: subprocess.Popen[bytes]) -> None:
    started.terminate()
    started.wait()
    for pipe in (started.stdin, started.stdout):
        assert pipe is not None
        pipe.close()


def _until(found: Callable[[], bool], what: str, pause_s: float = 0.02) -> float:
    """The seconds until it was so."""
    began = time.perf_counter()
    while not found():
        if time.perf_counter() - began > _BOUND_S:
            raise TimeoutError(what)
        time.sleep(pause_s)
    return time.perf_counter() - began


def _free_port() -> int:
    with socket.socket() as there:
        there.bind(("127.0.0.1", 0))
        return int(there.getsockname()[1])


# One real node.


@contextmanager
def _pair() -> Iterator[tuple[_Server, _Server, str]]:
    """A view and a node that also listens, for the way without a fabric; and the node's home."""
    with place() as made, ExitStack() as stack:
        view = dict(os.environ)
        node = {**view, "HOLDFAST_HOME": made.file("node")}
        fabric = _started(stack, [_HOLD, "fabric", "--port", str(_free_port())], view)
        assert fabric.stdout is not None
        fabric.stdout.readline()
        inviting = _started(stack, [_HOLD, "node", "invite", "a", "--scope", "manage"], view)
        assert inviting.stdout is not None
        code = inviting.stdout.readline().split()[-1].decode()
        subprocess.run([_HOLD, "node", "join", code], env=node, check=True, stdout=subprocess.DEVNULL)
        inviting.wait(_BOUND_S)
        near, far = _Server(view, stack), _Server(node, stack)
        _until(lambda: "version" in near.get("/v1/nodes/a/info"), "the node")
        yield near, far, node["HOLDFAST_HOME"]
        with holdfast.open(node["HOLDFAST_HOME"]) as hf:
            hf.stop_all([each.id for each in hf.sessions()], grace=0)


def stream() -> list[Row]:
    with _waited() as waited, _pair() as (near, far, home):
        with holdfast.open(home) as hf:
            id = hf.start(["cat"], tty={"echo": False}, place="local").id
            log = hf.run([sys.executable, "-c", _FLOOD], log_cap="256M", wait=60).id
        with far.attach(f"/sessions/{id}") as direct, near.attach(f"/nodes/a/sessions/{id}") as through:
            sides = {"direct": lambda: _echo(direct), "through": lambda: _echo(through)}
            echoes = interleaved(sides, _ROUNDS)
        more = [(a - b) * 1000 for a, b in zip(echoes["through"], echoes["direct"], strict=True)]
        path = f"/sessions/{log}/log/stdout"
        sides = {"direct": lambda: _rate(far, f"/v1{path}"), "through": lambda: _rate(near, f"/v1/nodes/a{path}")}
        rates = interleaved(sides, 5)
    typed, read = Spread.of(more), Spread.of(rates["through"])
    note = waited()
    return [
        Row(
            "B19",
            "attach through the fabric: key to echo, more than direct",
            f"{typed.median:.2f} ms ({statistics.median(echoes['direct']) * 1000:.2f} ms direct)",
            [Against("1.5 ms p50", _over(typed, 1.5), at_most=1)],
            note,
        ),
        Row(
            "B19",
            "one stream, log to view, sealed",
            f"{read.median:.0f} MB/s ({statistics.median(rates['direct']):.0f} MB/s direct)",
            [Against("50 MB/s", _over(read, 50), at_least=1)],
            note,
        ),
    ]


def _over(spread: Spread, goal: float) -> Spread:
    return Spread(spread.median / goal, spread.low / goal, spread.high / goal)


_typed = iter(range(10**9))


def _echo(attached: ClientConnection) -> float:
    """The median of some keys, each sent when the one before had been seen."""
    took = []
    for _ in range(_KEYS):
        number = next(_typed)
        word = f"k{number}."
        began = time.perf_counter()
        attached.send(json.dumps({"type": "input", "id": number + 1, "data": word + "\n"}))
        seen = b""
        while word.encode() not in seen:
            message = json.loads(attached.recv(_BOUND_S))
            if message["type"] == "data":
                seen += base64.b64decode(message["data"])
        took.append(time.perf_counter() - began)
    return statistics.median(took)


def _rate(server: _Server, target: str) -> float:
    began = time.perf_counter()
    size = len(server.raw(target))
    if size != _LOG_BYTES:
        raise AssertionError(f"{size} bytes came of {_LOG_BYTES}")
    return size / (time.perf_counter() - began) / _MB


# A thousand nodes.


class _Nats:
    """The server of `hold fabric`, with its own counters."""

    def __init__(self, home: Home, stack: ExitStack) -> None:
        self._home = home
        self._stack = stack
        self.port, self._monitor = _free_port(), _free_port()

    def start(self) -> None:
        record = Logins(self._home).read()
        path = os.path.join(self._home.path, "nodes", "bench.conf")
        with open(path, "w") as file:
            file.write(configuration(record) + f'http: "127.0.0.1:{self._monitor}"\n')
        quiet = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        self._program = subprocess.Popen([program(), "-c", path], env={**ENVIRONMENT, **os.environ}, **quiet)  # type: ignore[call-overload]
        self._stack.callback(self.end)
        self.pid = self._program.pid
        _until(self._answers, "the NATS server")

    def end(self) -> None:
        self._program.kill()
        self._program.wait()

    def messages(self) -> int:
        connection = HTTPConnection("127.0.0.1", self._monitor, timeout=_BOUND_S)
        connection.request("GET", "/varz")
        found = json.loads(connection.getresponse().read())
        connection.close()
        return int(found["in_msgs"])

    def _answers(self) -> bool:
        try:
            return self.messages() >= 0
        except OSError:
            return False


def fleet() -> list[Row]:
    with _waited() as waited, place() as made, ExitStack() as stack:
        env = dict(os.environ)
        home = Home()
        home.create()
        nats = _Nats(home, stack)
        _begin_fabric(home, nats.port)
        names = [f"n{number:04d}" for number in range(_NODES)]
        planned = many_nodes.plan(home, names, _SESSIONS)
        nats.start()
        with tempfile.NamedTemporaryFile("w", dir=made.path, suffix=".json", delete=False) as file:
            json.dump(planned, file)
        simulated = _started(stack, [sys.executable, many_nodes.__file__, file.name], env)
        assert simulated.stdin is not None
        assert simulated.stdout is not None
        stdin, stdout = simulated.stdin, simulated.stdout
        if stdout.readline() != b"ready\n":
            raise AssertionError("the nodes did not connect")

        def ask(line: str) -> None:
            stdin.write(f"{line}\n".encode())
            stdin.flush()

        began = time.perf_counter()
        view = _Server(env, stack)
        _until(lambda: _connected(view) == _NODES, "all nodes", 0.5)
        listed_s = time.perf_counter() - began
        pages = []
        target = "/v1/sessions?nodes=all&state=running&label=tier:web&sort=name&limit=50"
        for _ in range(_PAGES):
            began = time.perf_counter()
            page = view.get(target)
            pages.append((time.perf_counter() - began) * 1000)
            if len(page["items"]) != 50:
                raise AssertionError(f"{len(page['items'])} of 50 sessions")
        changes = []
        for number in range(_CHANGES):
            name = names[(number * 97) % _NODES]
            began = time.perf_counter()
            ask(f"change {name} changed-{number}")
            _until(lambda n=number, name=name: _is_changed(view, name, n), "a change")  # type: ignore[misc]
            changes.append(time.perf_counter() - began)
        view_mb, nats_mb = _memory_mb(view.pid), _memory_mb(nats.pid)
        # A look ends 60 s after the last request.
        time.sleep(_QUIET_S + 5)
        before, cpu = nats.messages(), _cpu_s(view.pid)
        time.sleep(_QUIET_S)
        idle, idle_cpu = nats.messages() - before, _cpu_s(view.pid) - cpu
        nats.end()
        time.sleep(_AWAY_S)
        ask("connects")
        told = Counter(json.loads(stdout.readline()))
        nats.start()
        back_s = _until(lambda: _connected(view) == _NODES, "all nodes again", 0.5)
        ask("connects")
        again = Counter(json.loads(stdout.readline()))
        again.subtract(told)
        most = max(again[second] + again[str(int(second) + 1)] for second in list(again))
    note = waited()
    page_ms = statistics.quantiles(pages, n=20)[-1]
    return [
        _goals(
            f"{_NODES} nodes with {_SESSIONS} sessions each: all listed; a filtered, sorted page; a change seen",
            note,
            (f"{listed_s:.1f} s", listed_s, "10 s", 10),
            (f"{page_ms:.0f} ms", page_ms, "150 ms p95", 150),
            (f"{statistics.median(changes):.2f} s", statistics.median(changes), "0.5 s", 0.5),
        ),
        _goals(
            "memory of that view; of the NATS server",
            "",
            (f"{view_mb:.0f} MB", view_mb, "400 MB", 400),
            (f"{nats_mb:.0f} MB", nats_mb, "150 MB", 150),
        ),
        _goals(
            "nobody looks: messages of ours in 60 s; CPU of the view",
            "",
            (f"{idle}", idle, "0 messages", 0),
            (f"{idle_cpu:.2f} s", idle_cpu, "0.05 s", 0.05),
        ),
        _goals(
            "the fabric is back after 60 s: all nodes again; connects in two seconds",
            note,
            (f"{back_s:.0f} s", back_s, "90 s", 90),
            (f"{most}", most, "100 connects", 100),
        ),
    ]


def _goals(what: str, note: str, *found: tuple[str, float, str, float]) -> Row:
    against = []
    for _, figure, goal, limit in found:
        ratio = figure / limit if limit else float(figure > 0)
        against.append(Against(goal, Spread(ratio, ratio, ratio), at_most=1 if limit else 0))
    return Row("B19", what, "; ".join(text for text, *_ in found), against, note)


def _begin_fabric(home: Home, port: int) -> None:
    """What `hold fabric` writes before it starts the server."""
    from holdfast.nodes.fabric import Address
    from holdfast.nodes.joining import Viewing

    viewing, logins = Viewing(home), Logins(home)
    url = f"nats://127.0.0.1:{port}"
    record = logins.begin({"bind": "127.0.0.1", "port": port, "view": viewing.name, "url": url, "tls": None})
    viewing.use(Address(url, record["fleet"], "view", record["logins"]["view"]["password"], None))


def _connected(view: _Server) -> int:
    return sum(each["state"] == "connected" for each in view.get("/v1/nodes").get("items", ()))


def _is_changed(view: _Server, node: str, number: int) -> bool:
    return bool(view.get(f"/v1/sessions?nodes={node}&name=changed-{number}")["items"])


def _memory_mb(pid: int) -> float:
    with open(f"/proc/{pid}/status") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("VmRSS")) / 1000


def _cpu_s(pid: int) -> float:
    with open(f"/proc/{pid}/stat") as file:
        words = file.read().rpartition(")")[2].split()
    return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")


def measure() -> list[Row]:
    return [*stream(), *fleet()]


ROWS = {"B19": measure}
