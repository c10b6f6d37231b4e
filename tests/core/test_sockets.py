"""Unix sockets with real paths, real peers and real descriptors."""

from __future__ import annotations

import os
import socket
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.core.sockets import (
    MAX_FDS,
    SUN_PATH_BYTES,
    bind_unix,
    connect_unix,
    peer_uid,
    recv_with_fds,
    send_with_fds,
)

Pair = tuple[socket.socket, socket.socket]


@pytest.fixture
def pair() -> Iterator[Pair]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield ours, theirs


def _open_fds() -> int:
    return len(os.listdir("/proc/self/fd"))


def _directory_of_length(base: Path, length: int) -> Path:
    """A directory below `base` whose path has exactly `length` bytes."""
    path = str(base)
    while len(path) < length:
        left = length - len(path) - 1
        step = left if left <= 100 else min(100, left - 2)
        path += "/" + "d" * step
    assert len(path) == length
    os.makedirs(path)
    return Path(path)


@pytest.mark.parametrize("length", [SUN_PATH_BYTES - 7, SUN_PATH_BYTES - 6, SUN_PATH_BYTES, 300, 2000])
def test_endpoint_at_a_path_of_any_length_is_bound_and_reached(tmp_path: Path, length: int) -> None:
    directory = _directory_of_length(tmp_path, max(length, len(str(tmp_path)) + 2))
    before = _open_fds()
    with socket.socket(socket.AF_UNIX) as listener, socket.socket(socket.AF_UNIX) as client:
        bind_unix(listener, str(directory), "b.sock")
        listener.listen()
        connect_unix(client, str(directory / "b.sock"))
        server, _ = listener.accept()
        with server:
            client.sendall(b"hi")
            assert server.recv(2) == b"hi"
    assert os.listdir(directory) == ["b.sock"]
    assert _open_fds() == before


@pytest.mark.parametrize("length", [0, 200])
def test_endpoint_bound_under_umask_zero_is_private_from_birth(tmp_path: Path, length: int) -> None:
    directory = _directory_of_length(tmp_path, max(length, len(str(tmp_path)) + 2))
    before = os.umask(0)
    try:
        with socket.socket(socket.AF_UNIX) as listener:
            bind_unix(listener, str(directory), "b.sock")
    finally:
        os.umask(before)
    assert stat.S_IMODE(os.lstat(directory / "b.sock").st_mode) == 0o600


def test_missing_endpoint_raises_and_leaks_nothing(tmp_path: Path) -> None:
    directory = _directory_of_length(tmp_path, 300)
    before = _open_fds()
    with socket.socket(socket.AF_UNIX) as client:
        for path in (directory / "b.sock", directory / "gone" / "b.sock", tmp_path / "b.sock"):
            with pytest.raises(FileNotFoundError):
                connect_unix(client, str(path))
    assert _open_fds() == before


def test_taken_endpoint_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "b.sock").write_text("mine")
    with socket.socket(socket.AF_UNIX) as listener, pytest.raises(OSError, match="in use"):
        bind_unix(listener, str(tmp_path), "b.sock")
    assert (tmp_path / "b.sock").read_text() == "mine"


def test_peer_uid_is_the_user_at_the_other_end(pair: Pair) -> None:
    assert peer_uid(pair[0]) == os.geteuid()


def test_descriptors_arrive_with_the_bytes_and_are_close_on_exec(pair: Pair) -> None:
    ours, theirs = pair
    reader, writer = os.pipe()
    try:
        os.set_inheritable(writer, True)
        assert send_with_fds(ours, b"start", [writer]) == 5
        data, fds = recv_with_fds(theirs, 64, 4)
        assert data == b"start"
        assert len(fds) == 1
        assert not os.get_inheritable(fds[0])
        os.write(fds[0], b"x")
        assert os.read(reader, 1) == b"x"
        os.close(fds[0])
    finally:
        os.close(reader)
        os.close(writer)


@pytest.mark.parametrize("sent", [1, 2, 3, 7, MAX_FDS])
@pytest.mark.parametrize("wanted", [0, 1, 2, 3])
def test_more_descriptors_than_wanted_are_closed_at_once(pair: Pair, sent: int, wanted: int) -> None:
    ours, theirs = pair
    before = _open_fds()
    send_with_fds(ours, b"x", [ours.fileno()] * sent)
    data, fds = recv_with_fds(theirs, 64, wanted)
    assert data == b"x"
    assert len(fds) == min(sent, wanted)
    for fd in fds:
        os.close(fd)
    assert _open_fds() == before


def test_bytes_without_descriptors_pass(pair: Pair) -> None:
    ours, theirs = pair
    assert send_with_fds(ours, b"abc", []) == 3
    assert recv_with_fds(theirs, 64, 4) == (b"abc", [])
    ours.close()
    assert recv_with_fds(theirs, 64, 4) == (b"", [])


def test_descriptors_without_bytes_and_too_many_are_refused(pair: Pair) -> None:
    with pytest.raises(ValueError, match="cannot ride"):
        send_with_fds(pair[0], b"", [0])
    with pytest.raises(ValueError, match="cannot ride"):
        send_with_fds(pair[0], b"x", [0] * (MAX_FDS + 1))
