"""An attempt of a recovered group has a number far above those of the former group, and still
begins with the rows and users that its share has not used."""

from __future__ import annotations

import pytest

from squall.cluster.protocol.messages import Preparation, SessionAnswer, SessionRequest
from squall.engine.users.resume_point import first_user
from tests.fakes.datacenter import Bench, workflow

FLOOR = 1_795_000_000


def test_rows_and_users_follow_the_place_of_an_attempt_and_not_its_number(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bench = Bench()
    tables = bench.machine.tables
    # The state was copied from a group of another name.
    job = bench.submit(workflow("Load", vus=2, duration_s=60))
    tables.group, tables.attempt_floor = "new", FLOOR
    bench.add("w1", 1)
    bench.add("w2", 1)
    orders: list[Preparation] = []
    answer = bench._session_answer

    def kept(request: SessionRequest) -> SessionAnswer:
        answered = answer(request)
        orders.extend(answered.prepare)
        return answered

    monkeypatch.setattr(bench, "_session_answer", kept)
    bench.until(lambda: bench.job(job).state == "running")
    bench.run(2.0)
    bench.workers["w1"].kill()
    bench.workers["w1"].restart()
    bench.until(lambda: any(order.spec.refill for order in orders))
    firsts = [order for order in orders if not order.spec.refill]
    refills = [order for order in orders if order.spec.refill]
    assert all(order.key.attempt > FLOOR for order in orders)
    assert {(order.spec.attempt, first_user(order.spec)) for order in firsts} == {(1, 0)}
    assert {order.spec.attempt for order in refills} == {2}
    assert all(first_user(order.spec) == order.spec.users_max for order in refills)
