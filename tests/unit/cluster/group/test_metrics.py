"""The metrics of a manager's links and queues, and the slots that followers do not take."""

from __future__ import annotations

import random
from typing import Any, cast

from squall.cluster.control.admission import Admission, Admitted
from squall.cluster.control.settings import AdmissionSettings
from squall.cluster.group.clients.relay import ClientRelay
from squall.cluster.group.metrics import admission_metrics
from squall.cluster.protocol.group_messages import Relay
from squall.cluster.protocol.messages import Follow
from squall.cluster.wire.counters import WireCounters, wire_metrics
from squall.cluster.wire.header import MessageClass
from squall.cluster.wire.links.dispatch import Handlers
from squall.runtime.metrics import Registry
from tests.fakes.datacenter import Bench
from tests.unit.cluster.manager.lab.client_api import api


def test_every_counter_of_the_wire_is_a_metric() -> None:
    registry, counters = Registry(), WireCounters()
    wire_metrics(registry, counters)
    counters.handshake_failed = 3
    told = registry.exposition()
    assert 'squall_wire_events{event="handshake_failed"} 3' in told
    for name in counters.as_dict():
        assert f'squall_wire_events{{event="{name}"}}' in told


def test_the_levels_of_the_queues_are_metrics() -> None:
    registry = Registry()
    admission = Admission(AdmissionSettings(control_max=1), random.Random(1).uniform)
    admission_metrics(registry, admission)
    for message_class in (MessageClass.DATA, MessageClass.CONTROL, MessageClass.CONTROL):
        assert isinstance(admission.admit(message_class, 0.0, "m1"), Admitted)
    told = registry.exposition()
    assert 'squall_requests_running{class="data"} 1' in told
    assert 'squall_requests_running{class="control"} 1' in told
    assert "squall_requests_waiting 1" in told


def test_the_followers_of_a_job_wait_without_a_slot_also_if_they_are_relayed() -> None:
    handlers = Handlers()
    api(Bench(w1=1)).register(handlers)
    this = cast("Any", None)
    ClientRelay(handlers, machine=this, ledger=this, leaders=this, clock=this)
    numbers = {handlers.catalogue.by_struct[each].number for each in (Follow, Relay)}
    assert set(handlers.polls) == numbers
