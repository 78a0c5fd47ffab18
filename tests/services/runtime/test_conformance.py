"""The real runtime on real sockets and files, on both loops that it may meet."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest
import uvloop

from squall.runtime.interfaces import Address
from squall.runtime.real.runtime import RealRuntime
from tests.lab.runtime_conformance import Check, RuntimeConformance, Stage

LOOPS: dict[str, Callable[[], asyncio.AbstractEventLoop]] = {
    "uvloop": uvloop.new_event_loop,
    "asyncio": asyncio.new_event_loop,
}


def silent_address(stack: ExitStack) -> Address:
    """A listener that accepts no connection, with its queue full: further dials go unanswered."""
    listener = stack.enter_context(socket.socket())
    listener.bind(("127.0.0.1", 0))
    listener.listen(0)
    for _ in range(4):
        filler = stack.enter_context(socket.socket())
        filler.setblocking(False)
        filler.connect_ex(listener.getsockname())
    return listener.getsockname()


@pytest.mark.parametrize("loop", LOOPS)
class TestRealRuntime(RuntimeConformance):
    @pytest.fixture(autouse=True)
    def _place(self, loop: str, tmp_path: Path) -> None:
        self._make_loop = LOOPS[loop]
        self._tmp_path = tmp_path

    def play(self, check: Check) -> None:
        async def whole(silent: Address) -> None:
            server = RealRuntime("server", data_dir=self._tmp_path / "server")
            client = RealRuntime("client", data_dir=self._tmp_path / "client")
            problems: list[dict[str, object]] = []
            asyncio.get_running_loop().set_exception_handler(lambda _, what: problems.append(what))
            try:
                async with asyncio.timeout(30.0):
                    await check(Stage(server, client, "127.0.0.1", "127.0.0.1", silent))
            finally:
                await client.close()
                await server.close()
            for runtime in (client, server):
                assert runtime.network.open_count == 0
                assert runtime.disk.open_count == 0
            assert problems == []

        with ExitStack() as stack, asyncio.Runner(loop_factory=self._make_loop) as runner:
            runner.run(whole(silent_address(stack)))
