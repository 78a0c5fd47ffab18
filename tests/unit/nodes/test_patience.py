"""How long nodes wait for their network can be given, and fits sockets by default."""

from __future__ import annotations

from typing import Any, cast

import pytest

from squall.nodes.client.client import ClusterClient
from squall.nodes.client.errors import Unreachable
from squall.nodes.patience import LINK_LIMITS, Patience
from squall.runtime.tasks import TaskRunner
from squall.wire.limits import WireLimits
from squall.wire.secrets import Secrets
from wire_fakes import SECRET, FakeNetwork, FakeRuntime, run, turns

SLOW = Patience(limits=WireLimits(dial_timeout_s=20.0), query_s=45.0)


def client(patience: Patience | None) -> ClusterClient:
    runtime = cast("Any", FakeRuntime(FakeNetwork(), "client", "boot"))
    return ClusterClient(
        runtime,
        TaskRunner(runtime.clock, runtime.random),
        addresses=[("manager", 1)],
        secrets=Secrets.of_node(SECRET),
        cluster="test",
        patience=patience,
    )


def test_links_of_a_client_have_the_limits_of_its_network() -> None:
    async def main() -> None:
        assert client(SLOW).managers.board.limits.dial_timeout_s == 20.0
        assert client(None).managers.board.limits is LINK_LIMITS
        await turns()

    run(main())


def test_a_client_on_a_slow_network_asks_for_longer() -> None:
    async def main() -> None:
        for patience, least_s, most_s in ((None, 3.0, 8.0), (SLOW, 40.0, 50.0)):
            asking = client(patience)
            clock = cast("Any", asking)._runtime.clock
            begun = clock.now()
            with pytest.raises(Unreachable, match="no manager answers"):
                await asking.nodes()
            assert least_s <= clock.now() - begun <= most_s
            await asking.close()

    run(main())
