"""The metrics that every member of a control group has: requests, reports, group and log."""

from __future__ import annotations

from collections.abc import Callable

from squall.cluster.control.admission import Admission
from squall.cluster.group.member_watch import GroupWatch
from squall.cluster.group.telemetry.report_store import ReportMemory
from squall.cluster.group.wall_clocks import CLOCK_OFF_S
from squall.cluster.ledger.interface import Ledger
from squall.cluster.protocol.group_messages import GroupView, MemberView
from squall.cluster.wire.header import MessageClass
from squall.runtime.metrics import Registry


def refusal_counter(registry: Registry) -> Callable[[str, str], None]:
    """Returns a function that counts a refused request by client and by the limit it met."""
    refused = registry.counters(
        "squall_client_refusals_total",
        "Refused requests of clients, by client and limit",
        ["client", "limit"],
    )
    return lambda client, limit: refused.with_labels(client, limit).add()


def admission_metrics(registry: Registry, admission: Admission) -> None:
    """How full this manager is with requests."""
    running = registry.gauges("squall_requests_running", "Requests in work, by class", ["class"])
    for each in MessageClass:
        running.with_labels(each.name.lower()).follow(
            lambda each=each: float(admission.load().in_flight[each])
        )
    registry.gauge("squall_requests_waiting", "CONTROL requests that wait for a slot").follow(
        lambda: float(admission.load().control_waiting)
    )


def report_metrics(registry: Registry, memory: ReportMemory) -> None:
    """The memory for reports of running shares."""
    registry.gauge("squall_reports_bytes", "Reports of running shares in memory").follow(
        lambda: float(memory.used_bytes)
    )
    registry.gauge("squall_reports_max_bytes", "Above this, reports are merged").follow(
        lambda: float(memory.max_bytes)
    )


def group_metrics(
    registry: Registry, ledger: Ledger, watch: GroupWatch, view: Callable[[], GroupView]
) -> None:
    """The group as this manager knows it, and this manager's own log."""
    ledger.add_metrics(registry)

    def gauge(name: str, text: str, value: Callable[[], float]) -> None:
        registry.gauge(name, text).follow(value)

    gauge("squall_group_epoch", "Changes of members so far", lambda: float(ledger.fence.epoch))
    gauge("squall_group_view", "The present view of the epoch", lambda: float(ledger.fence.view))
    gauge(
        "squall_group_has_leader",
        "1 while a leading manager is known",
        lambda: 0.0 if ledger.primary is None else 1.0,
    )
    gauge(
        "squall_group_members",
        "Managers by the log",
        lambda: float(sum(each.is_member for each in view().members)),
    )
    gauge(
        "squall_group_members_silent",
        "Members that sent nothing for 2 s",
        lambda: float(sum(each.state == "silent" for each in view().members)),
    )
    gauge(
        "squall_group_behind",
        "Committed commands that this manager has not applied yet",
        lambda: _own(view(), watch).behind,
    )
    gauge(
        "squall_group_stale_seconds",
        "Seconds since this manager last heard from the primary",
        lambda: _own(view(), watch).stale_s,
    )
    gauge(
        "squall_group_view_changes",
        "Changes of view since the start",
        lambda: float(watch.view_changes),
    )
    gauge(
        "squall_group_stepped_down",
        "Times that this manager stopped leading since its start",
        lambda: float(watch.stepped_down),
    )
    gauge(
        "squall_group_alarms",
        "Divergence and damage that was found since the start",
        lambda: float(watch.alarm_count),
    )
    gauge(
        "squall_clock_offset_seconds",
        "Seconds that this manager's wall clock is ahead of the median of the managers'",
        lambda: watch.clock_offsets()[watch.node],
    )
    gauge(
        "squall_group_clocks_off",
        "Managers whose wall clock is more than 0.5 s from the median",
        lambda: float(sum(abs(each) > CLOCK_OFF_S for each in watch.clock_offsets().values())),
    )
    gauge(
        "squall_disk_free_bytes",
        "Free space for the data directory; -1: not known",
        lambda: float(_own(view(), watch).disk_free),
    )


def region_metrics(registry: Registry, view: Callable[[], GroupView]) -> None:
    """Reports where the members are; only gates say so."""
    registry.gauge(
        "squall_group_degraded_durability", "1 while one region holds a quorum of the members"
    ).follow(lambda: float(bool(view().degraded_durability)))


def _own(view: GroupView, watch: GroupWatch) -> MemberView:
    return next((each for each in view.members if each.name == watch.node), _UNKNOWN_MEMBER)


_UNKNOWN_MEMBER = MemberView(name="", address="", state="")
