"""A worker's telemetry goes along with its sessions where both come equally often."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from squall.cluster.protocol.messages import SessionAnswer, SessionRequest
from squall.cluster.protocol.timers import Timers
from squall.cluster.wire.seal.secrets import Secrets, worker_credential
from squall.cluster.worker.node import WorkerNode
from squall.cluster.worker.settings import WorkerSettings
from squall.cluster.worker.share_host import Machine, ShareHost
from squall.runtime.interfaces import Runtime
from tests.fakes.wire import CLUSTER, SECRET, FakeNetwork, FakeRuntime, run


class Asked:
    """A manager's link: what is posted in one turn leaves in one send."""

    def __init__(self) -> None:
        self.sends: list[list[str]] = []
        self._posted: list[str] = []

    def post(self, what: str) -> None:
        if not self._posted:
            asyncio.get_running_loop().call_soon(self._flush)
        self._posted.append(what)

    def _flush(self) -> None:
        self.sends.append(self._posted)
        self._posted = []

    async def request(self, message: SessionRequest, timeout_s: float) -> SessionAnswer:
        self.post("session")
        await asyncio.sleep(0.01)
        return SessionAnswer(epoch=1, view=1, committed=1, sequence=message.sequence)


class Told:
    """Stands for the deliveries: telemetry that is posted, and answered after a while."""

    def __init__(self, asked: Asked, takes_s: float) -> None:
        self._asked = asked
        self._takes_s = takes_s

    async def send_telemetry(self) -> None:
        self._asked.post("telemetry")
        await asyncio.sleep(self._takes_s)


def worker(asked: Asked, *, telemetry_s: float, takes_s: float = 0.01) -> Any:
    runtime = FakeRuntime(FakeNetwork(), "w1", "boot")
    cast("Any", runtime).disk = None
    cast("Any", runtime.clock).boot_time = runtime.clock.now
    settings = WorkerSettings(
        datacenter="dc",
        managers=(("server", 700),),
        cores=1,
        secrets=Secrets.of_credential(worker_credential(SECRET)),
        cluster=CLUSTER,
        timers=Timers(),
    )
    host, machine = cast("ShareHost", None), cast("Machine", None)
    node = cast("Any", WorkerNode(cast("Runtime", runtime), host, machine, settings))
    node._registered = True
    node._deliveries = Told(asked, takes_s)
    node.session.interval_s, node.session.telemetry_interval_s = 1.0, telemetry_s
    return node


@pytest.mark.parametrize("telemetry_s", [1.0, 0.95])
def test_both_leave_in_one_send(telemetry_s: float) -> None:
    async def main() -> None:
        asked = Asked()
        await worker(asked, telemetry_s=telemetry_s)._exchange(asked)
        assert asked.sends == [["telemetry", "session"]]

    run(main())


def test_telemetry_that_comes_more_often_has_a_rhythm_of_its_own() -> None:
    async def main() -> None:
        asked = Asked()
        await worker(asked, telemetry_s=0.1)._exchange(asked)
        assert asked.sends == [["session"]]

    run(main())


def test_a_round_that_is_still_under_way_is_not_begun_again() -> None:
    async def main() -> None:
        asked = Asked()
        node = worker(asked, telemetry_s=1.0, takes_s=5.0)
        for _ in range(3):
            node.session.telemetry_interval_s = 1.0
            await node._exchange(asked)
        assert asked.sends == [["telemetry", "session"], ["session"], ["session"]]
        await asyncio.sleep(10.0)

    run(main())


def test_without_sessions_telemetry_goes_alone() -> None:
    async def main() -> None:
        asked = Asked()
        telling = asyncio.ensure_future(worker(asked, telemetry_s=1.0)._report())
        await asyncio.sleep(10.5)
        telling.cancel()
        assert 4 <= len(asked.sends) <= 10
        assert all(sent == ["telemetry"] for sent in asked.sends)

    run(main())
