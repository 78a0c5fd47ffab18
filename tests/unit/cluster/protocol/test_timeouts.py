"""How long nodes wait for their network can be given, and fits sockets by default."""

from __future__ import annotations

from typing import Any, cast

import pytest

from squall.cluster.client.cluster_client import ClusterClient
from squall.cluster.client.errors import Unreachable
from squall.cluster.protocol.timeouts import LINK_LIMITS, RequestTimeouts
from squall.cluster.wire.limits import WireLimits
from squall.cluster.wire.seal.secrets import Secrets
from squall.runtime.tasks import TaskRunner
from tests.fakes.wire import SECRET, FakeNetwork, FakeRuntime, run, turns

SLOW = RequestTimeouts(limits=WireLimits(dial_timeout_s=20.0), query_s=45.0)


def client(timeouts: RequestTimeouts | None) -> ClusterClient:
    runtime = cast("Any", FakeRuntime(FakeNetwork(), "client", "boot"))
    return ClusterClient(
        runtime,
        TaskRunner(runtime.clock, runtime.random),
        addresses=[("manager", 1)],
        secrets=Secrets.of_node(SECRET),
        cluster="test",
        timeouts=timeouts,
    )


def test_links_of_a_client_have_the_limits_of_its_network() -> None:
    async def main() -> None:
        assert client(SLOW).managers.board.limits.dial_timeout_s == 20.0
        assert client(None).managers.board.limits is LINK_LIMITS
        await turns()

    run(main())


def test_a_client_on_a_slow_network_asks_for_longer() -> None:
    async def main() -> None:
        for timeouts, least_s, most_s in ((None, 3.0, 8.0), (SLOW, 40.0, 50.0)):
            asking = client(timeouts)
            clock = cast("Any", asking)._runtime.clock
            begun = clock.now()
            with pytest.raises(Unreachable, match="no manager answers"):
                await asking.nodes()
            assert least_s <= clock.now() - begun <= most_s
            await asking.close()

    run(main())
