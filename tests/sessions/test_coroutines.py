"""One host, its calls as coroutines over the thread that it blocks; and words before a command."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.sessions.aio import coroutines
from holdfast.sessions.driver import drive

if TYPE_CHECKING:
    from holdfast import Holdfast
    from support.world import World


def test_coroutines_of_a_blocking_host_run_to_their_end_without_a_loop(world: World) -> None:
    hf = world.open()

    async def both() -> str:
        again = coroutines(hf)
        session = await again.start("echo hello; sleep 60", owner="a")
        await session.wait(match="hello", timeout=30)
        (stopped,) = await again.stop_all([session.id], grace=1, by="somebody")
        assert stopped.done
        found = await again.get(session.id)
        assert found.exit is not None
        assert found.exit.by == "somebody"
        return await found.text()

    assert drive(both()) == "hello\n"


def test_a_command_stands_behind_the_words_of_its_shell(hf: Holdfast) -> None:
    done = hf.run("echo '$1' && exit 3", shell=["/bin/sh", "-c", 'echo before; eval "$1"', "sh"])
    assert done.exit is not None
    assert (done.text(), done.exit.code, done.command) == ("before\n$1\n", 3, "echo '$1' && exit 3")
