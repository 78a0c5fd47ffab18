"""The timers of the gates' work. Those of the group itself are settings (profile `wan`)."""

from __future__ import annotations

import msgspec

from squall.settings.shared_sections import GateRoutingSettings, JobSettings

_JOBS = JobSettings()


class GateTimers(msgspec.Struct, frozen=True, kw_only=True):
    hold_s: float = 30.0
    """How long a datacenter that is ready holds its cores for the other parts of a job, and how
    long one that does not answer is waited for; then the parts are given back."""
    unroutable_s: float = 30.0
    """How long a job waits while no datacenter can run it, before it fails with the reason: a
    datacenter that restarts is back by then."""
    lost_wait_s: float = GateRoutingSettings().lost_wait_s
    """How long a started part is waited for whose datacenter is unreachable: a region that was cut
    off for a minute still delivers its exact numbers. If its managers are gone too, its workers
    stop by themselves when their leases end, 23 s after they last heard one."""
    deadline_margin_s: float = 60.0
    """Added to the length of the plan for a job without a timeout: datacenters have limits of their
    own, which end a part before the gates end the job."""
    again_first_s: float = 2.0
    again_max_s: float = 60.0
    """The wait before a job is tried again after its n-th hold or refusal grows from the first to
    the second."""
    tries_max: int = 20
    """Refusals of one part, after which the job fails with the last of them."""
    settle_s: float = 0.5
    """How long after its end a second is shown: the reports of far datacenters are on their way."""
    retention_s: float = _JOBS.retention_s
    retention_failed_s: float = _JOBS.retention_failed_s
    key_retention_s: float = _JOBS.key_retention_s
    jobs_kept_max: int = _JOBS.jobs_kept_max
    keys_kept_max: int = _JOBS.keys_kept_max

    def again_s(self, times: int) -> float:
        """The wait before the next try, after a job was refused `times` times."""
        return min(self.again_first_s * 2.0 ** min(max(times - 1, 0), 16), self.again_max_s)


def gate_timers(profile: str, jobs: JobSettings, routing: GateRoutingSettings) -> GateTimers:
    """Combines the settings with the timers of the profile."""
    chosen = GateTimers()
    if profile == "fast":
        chosen = GateTimers(
            hold_s=5.0,
            unroutable_s=10.0,
            again_first_s=0.5,
            again_max_s=5.0,
            settle_s=0.3,
        )
    return msgspec.structs.replace(
        chosen,
        lost_wait_s=routing.lost_wait_s,
        retention_s=jobs.retention_s,
        retention_failed_s=jobs.retention_failed_s,
        key_retention_s=jobs.key_retention_s,
        jobs_kept_max=jobs.jobs_kept_max,
        keys_kept_max=jobs.keys_kept_max,
    )
