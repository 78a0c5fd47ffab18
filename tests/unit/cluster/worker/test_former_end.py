"""A worker reports when its former boot ended only if its launcher saw that very process end."""

from __future__ import annotations

from typing import Any, cast

import pytest

from squall.cluster.protocol.messages import Registered, RegisterWorker
from squall.cluster.protocol.timers import Timers
from squall.cluster.wire.seal.secrets import Secrets, worker_credential
from squall.cluster.worker.node import WorkerNode
from squall.cluster.worker.settings import FormerProcess, WorkerSettings
from squall.cluster.worker.share_host import ShareHost
from squall.runtime.interfaces import Runtime
from tests.fakes.wire import CLUSTER, SECRET, FakeNetwork, FakeRuntime, run

DEAD = 77


class Machine:
    pid, host, machine, kernel_boot = 78, "here", "m", "k"


class Manager:
    """The link to a manager that accepts the worker."""

    def __init__(self) -> None:
        self.registration: RegisterWorker | None = None

    async def request(self, message: RegisterWorker, timeout_s: float) -> Registered:
        self.registration = message
        return Registered()


@pytest.mark.parametrize(
    ("former", "ago_s"),
    [
        (FormerProcess(DEAD, 97.5), 2.5),
        # The clocks of two processes may be read in either order.
        (FormerProcess(DEAD, 100.1), 0.0),
        # The launcher's former process never came as far as the directory, which names another.
        (FormerProcess(DEAD + 1, 97.5), None),
        (None, None),
    ],
)
def test_a_registration_says_how_long_ago_the_former_boot_ended(
    former: FormerProcess | None, ago_s: float | None
) -> None:
    async def main() -> None:
        runtime = FakeRuntime(FakeNetwork(), "w1", "boot-2")
        cast("Any", runtime).disk = None
        cast("Any", runtime.clock).boot_time = lambda: 100.0
        settings = WorkerSettings(
            datacenter="dc",
            managers=(("server", 700),),
            cores=1,
            secrets=Secrets.of_credential(worker_credential(SECRET)),
            cluster=CLUSTER,
            timers=Timers(),
            former=former,
        )
        host, machine = cast("ShareHost", None), cast("Any", Machine())
        node = cast("Any", WorkerNode(cast("Runtime", runtime), host, machine, settings))
        node._directory.dead_pid = DEAD
        manager = Manager()
        assert await node._register(manager)
        assert manager.registration is not None
        assert manager.registration.former_ended_ago_s == ago_s

    run(main())
