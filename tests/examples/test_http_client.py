"""The client over HTTP: it works, and sends its token to no other program that listens on the port."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from support.strangers import HTTP_CLIENT, http_client, program_on

if TYPE_CHECKING:
    from support.serving import Serving
    from support.world import World


def test_it_runs_a_command(world: World, serving: Serving) -> None:
    argv = [sys.executable, str(HTTP_CLIENT), serving.url, str(world.home / "server" / "token")]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (0, "hello from a session\n"), done.stderr


@pytest.mark.parametrize("body", [b'{"proof": "' + b"0" * 64 + b'", "token": "hf_home_mine"}', b"<html>"])
def test_a_stranger_on_the_port_gets_no_token(serving: Serving, body: bytes) -> None:
    example = http_client()
    client = example.Client(serving.url, serving.token)
    assert client.call("GET", "/v1/info")["scopes"]
    # What a page asks for gets a connection of its own: browsers repeat a request whose connection breaks.
    headers = {"Host": serving.address, "Content-Type": "application/json"}
    for more, kept in (({}, None), ({"Origin": serving.url}, "close")):
        prove = b'{"id": "home", "nonce": "x"}'
        answer = serving.ask("/v1/auth/prove", {**headers, **more}, method="POST", body=prove)
        assert (answer.status, answer.headers.get("connection")) == (200, kept)
    with pytest.raises(example.Refused, match="nobody"):
        client.call("GET", "/v1/sessions/nobody")
    serving.kill()
    serving.program.wait(30)
    with program_on(serving.port, body) as (_, received):
        for _ in range(2):
            with pytest.raises(example.NotTheServer):
                client.call("POST", "/v1/sessions", {"command": "secret word"})
        assert len(received) == 2
    for each in received:
        assert each.split()[1] == b"/v1/auth/prove"
        assert not [word for word in (serving.secret, "hf_", "Authorization", "secret word") if word.encode() in each]
    serving.start()
    assert client.call("GET", "/v1/info")["scopes"]
    client.close()
