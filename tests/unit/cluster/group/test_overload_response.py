"""An overloaded manager asks for reports less often, and sheds telemetry and nothing else."""

from __future__ import annotations

from random import Random
from typing import Any, cast

from squall.cluster.control.admission import Admission, Admitted, LoadState, Shed
from squall.cluster.control.settings import AdmissionSettings
from squall.cluster.group.overload_response import OverloadResponse
from squall.cluster.wire.header import MessageClass
from squall.runtime.metrics import Registry


class Told:
    def __init__(self) -> None:
        self.lines: list[tuple[str, str]] = []

    def warning(self, event: str, **fields: Any) -> None:
        self.lines.append((event, fields["state"]))

    info = warning


def test_workers_tell_less_often_then_telemetry_is_shed_and_it_ends_by_itself() -> None:
    admission = Admission(AdmissionSettings(), Random(1).uniform)
    told = Told()
    pressure = OverloadResponse(admission, cast("Any", None), cast("Any", told))
    now = 0.0
    paces: list[float] = []
    for lag_s in [0.001] * 30 + [0.3] * 15 + [0.7] * 15 + [3.0] * 15:
        now += 1.0
        pressure.sample(lag_s, now)
        paces.append(pressure.pace)
    assert (paces[29], paces[44], paces[59], paces[74]) == (1.0, 4.0, 4.0, 8.0)
    assert isinstance(admission.admit(MessageClass.TELEMETRY, now), Shed)
    assert admission.state is LoadState.PRESSURED
    for other in (MessageClass.CONTROL, MessageClass.DISPATCH, MessageClass.DATA):
        assert isinstance(admission.admit(other, now), Admitted), other
    registry = Registry()
    pressure.show(registry)
    assert "squall_overload 3" in registry.exposition()
    assert 'squall_shed_requests{class="telemetry"} 1' in registry.exposition()
    for _ in range(60):
        now += 1.0
        pressure.sample(0.001, now)
    assert pressure.pace == 1.0
    assert isinstance(admission.admit(MessageClass.TELEMETRY, now), Admitted)
    assert [state for _, state in told.lines][-1] == "healthy"
