"""What a manager's answers to sessions say of membership, and to which workers."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from squall.cluster.ledger.interface import Fence
from squall.cluster.manager.worker_api import WorkerApi
from squall.cluster.protocol.membership.order import MembershipOrder, order_of
from squall.cluster.protocol.messages import SessionAnswer, SessionRequest
from squall.runtime.log import Log, MemorySink
from squall.settings.shared_sections import MembershipSettings

ORDER = order_of(MembershipSettings(), "lan", [("10.0.0.1", 7400)], (b"the membership key",))


def answered(*, knows: bool, membership: int) -> MembershipOrder | None:
    """What the answer to a worker has of membership; `knows`: its boot is registered."""
    clock = SimpleNamespace(now=lambda: 1.0)
    answer = SessionAnswer(epoch=1, view=1, committed=1, sequence=1, register=not knows)
    director = SimpleNamespace(session=lambda message, **more: answer, has_work=False)
    ledger = SimpleNamespace(
        is_primary=True, is_alone=True, fence=Fence(1, 1), applied=1, group_ms=lambda: 0
    )
    parts: dict[str, Any] = dict.fromkeys(("committer", "machine", "leader", "leaders", "runner"))
    api = WorkerApi(
        **parts,
        datacenter="dc",
        ledger=cast("Any", ledger),
        timers=cast("Any", None),
        clock=cast("Any", clock),
        log=Log(MemorySink(), cast("Any", clock)),
        director=lambda: cast("Any", director),
        on_heard=lambda: None,
        managers=list[str],
        membership=lambda version: ORDER if version != ORDER.version else None,
        on_link=lambda incoming: None,
    )
    request = SessionRequest(node="w1", boot="b1", sequence=1, membership=membership)
    found = api.session(request, cast("Any", None))
    assert isinstance(found, SessionAnswer)
    return found.membership


def test_a_registered_worker_gets_the_order_with_the_keys_once() -> None:
    assert answered(knows=True, membership=0) == ORDER
    assert answered(knows=True, membership=ORDER.version) is None


@pytest.mark.parametrize(
    ("knows", "membership"),
    [
        pytest.param(False, 0, id="a boot that is not registered"),
        pytest.param(True, -1, id="a worker that takes no part"),
    ],
)
def test_others_get_no_key(knows: bool, membership: int) -> None:
    assert answered(knows=knows, membership=membership) is None
