"""A loss names what ended: a worker, its restart, or one of its core processes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from squall.engine.outcome import Loss
from squall.reporting.loss_lines import STARTED_LATE, loss_line


@pytest.mark.parametrize(
    ("reason", "refilled_by", "begins"),
    [
        ("no sign of life of w1 for 17.5 s", "w2", "worker w1 lost, last heard at 6.8 s: Shop,"),
        ("no sign of life of w1 for 17.5 s", "", "worker w1 lost, last heard at 6.8 s: Shop,"),
        ("core process 0 ended (SIGKILL)", "w1", "a core process of w1 died at 6.8 s: Shop,"),
        ("core process 0 ended (SIGKILL)", "w2", "a core process of w1 died at 6.8 s: Shop,"),
        ("it ended without a record", "w1", "a core process of w1 died at 6.8 s: Shop,"),
        ("worker w1 restarted", "w1", "worker w1 restarted at 6.8 s: Shop,"),
        (STARTED_LATE, "", "worker w1 started late at 6.8 s: Shop,"),
        ("its worker was drained", "w2", "worker w1 drained at 6.8 s: Shop,"),
    ],
)
def test_the_line_says_what_ended(reason: str, refilled_by: str, begins: str) -> None:
    is_last_heard = "sign of life" in reason
    loss = Loss(
        process=0,
        workflow="Shop",
        at_s=6.8,
        reason=reason,
        users=5,
        worker="w1",
        refilled_by=refilled_by,
        is_last_heard=is_last_heard,
    )
    assert loss_line(loss).startswith(begins)


@pytest.mark.parametrize(
    ("amount", "says"),
    [
        ({"starts": 19}, "Shop, 19 planned starts missing in 0.8 s, refilled"),
        ({"starts": 1}, "Shop, 1 planned start missing in 0.8 s, refilled"),
        ({"iterations": 7}, "Shop, 7 iterations missing for 0.8 s, refilled"),
        ({}, "Shop, 2 users missing for 0.8 s, refilled"),
    ],
)
def test_the_line_says_how_much_is_missing(amount: dict[str, int], says: str) -> None:
    loss = Loss(
        process=0,
        workflow="Shop",
        at_s=7.0,
        reason="worker w1 restarted",
        users=2,
        worker="w1",
        below_target_s=0.8,
        refilled_by="w1",
        starts=amount.get("starts"),
        iterations=amount.get("iterations"),
    )
    assert says in loss_line(loss)


def test_a_loss_names_its_datacenter() -> None:
    whole = Loss(
        process=0,
        workflow="Shop",
        at_s=12.0,
        reason="no manager answers",
        users=40,
        below_target_s=48.0,
        is_last_heard=True,
        datacenter="us",
    )
    assert loss_line(whole) == (
        "datacenter us lost, last heard at 12.0 s: Shop, 40 users missing for 48.0 s, not refilled"
    )
    worker = replace(whole, worker="w2", refilled_by="w1, w3", is_last_heard=False)
    assert loss_line(worker) == (
        "worker us/w2 lost at 12.0 s: Shop, 40 users missing for 48.0 s, refilled by us/w1, us/w3"
    )
