"""Places of these tests have our code already: how it comes there is what tests/places is about."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from support.containers import Container
from support.places import CodeThere
from support.ssh_hosts import SshHost


@pytest.fixture
def container(container: Container, code_there: CodeThere) -> Iterator[Container]:
    code_there.bring(container.root / "root")
    yield container
    code_there.keep(container.root / "root")


@pytest.fixture
def own_container(own_container: Container, code_there: CodeThere) -> Iterator[Container]:
    code_there.bring(own_container.root / "root")
    yield own_container
    code_there.keep(own_container.root / "root")


@pytest.fixture
def ssh_host(ssh_host: SshHost, code_there: CodeThere) -> Iterator[SshHost]:
    code_there.bring(ssh_host.home)
    yield ssh_host
    code_there.keep(ssh_host.home)
