"""Cancels jobs, changes their load and extends their time, the same for managers and gates.

Every change is one command that is safe to repeat.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from squall.cluster.group.clients.job_requests import JobRequests, with_reason
from squall.cluster.group.committer import Committer
from squall.cluster.group.job_deadlines import LimitedJob, deadline_ms, extension_cap_ms
from squall.cluster.group.job_tables import GroupJob
from squall.cluster.protocol.job_commands import ExtendJob, StopJob
from squall.cluster.protocol.messages import Adjusted, AdjustJob, CancelAccepted, CancelJob
from squall.cluster.protocol.submission_limits import TIMEOUT_MAX_S, adjustment_fault
from squall.cluster.wire.errors import RemoteError
from squall.cluster.wire.links.dispatch import Handlers, Incoming
from squall.cluster.wire.messages import ErrorCode
from squall.runtime.log import Log


class ChangeableJob(GroupJob, LimitedJob, Protocol):
    def adjusted_by(self, request_id: str) -> int:
        """The number of the adjustment that a request has made; 0: none that is known."""
        ...


Changed = TypeVar("Changed", bound=ChangeableJob)


@dataclass(frozen=True)
class JobChanges(Generic[Changed]):
    """Handles the requests of clients that change a job."""

    requests: JobRequests[Changed]
    committer: Committer[Any]
    log: Log
    load_command: Callable[[Changed, AdjustJob, str], object]
    """Makes the command that changes the load of a job, with the name of the client."""
    why_no_timeout: str
    """Why a job whose load has not begun has no timeout yet."""

    def register(self, handlers: Handlers) -> None:
        handlers.on(CancelJob, self.cancel)
        handlers.on(AdjustJob, self.adjust)

    async def cancel(self, message: CancelJob, incoming: Incoming) -> CancelAccepted:
        read = await self.committer.read()
        before = self.requests.job(message.job)
        if before.over:
            return CancelAccepted(before.state, True, read)
        who = with_reason(self.requests.check_owner("cancel", before, incoming), message.reason)
        accepted = await self.committer.commit(
            StopJob(
                job=message.job,
                kind="cancelled",
                reason=f"cancelled by {who}",
                now=message.now,
            )
        )
        return CancelAccepted(self.requests.job(message.job).state, not accepted.changed, read)

    async def adjust(self, message: AdjustJob, incoming: Incoming) -> Adjusted:
        read = await self.committer.read()
        job = self.requests.job(message.job)
        made = job.adjusted_by(message.request_id)
        if made:
            # Also if the job is over by now: the client repeats what took effect before.
            extended_ms = 0 if message.extend_s is None else job.extension_ms
            return Adjusted(made, extended_ms / 1000.0, read)
        if job.over:
            raise RemoteError(ErrorCode.CONFLICT, f"{job.job} is over ({job.state})")
        who = with_reason(self.requests.check_owner("adjust", job, incoming), message.reason)
        fault = adjustment_fault(message.rate_per_s, message.vus, message.request_id)
        if fault:
            raise RemoteError(ErrorCode.BAD_MESSAGE, fault)
        extended_s = await self._extended(job, message.extend_s, who)
        if message.paused is None and message.rate_per_s is None and message.vus is None:
            return Adjusted(0, extended_s, read)
        accepted = await self.committer.commit(self.load_command(job, message, who))
        self.log.info(
            "job_adjusted",
            job=message.job,
            by=who,
            paused=message.paused,
            rate_per_s=message.rate_per_s,
            vus=message.vus,
        )
        return Adjusted(accepted.value, extended_s, read)

    async def _extended(self, job: Changed, seconds: float | None, who: str) -> float:
        """Returns the time that the job has beyond its timeout, which may be less than asked
        for. A request names the sum of all extensions, so repeating it changes nothing."""
        if seconds is None:
            return 0.0
        if not 0.0 <= seconds <= TIMEOUT_MAX_S:
            text = f"extend_s is {seconds}; it must be at least 0 and at most {TIMEOUT_MAX_S:,.0f}"
            raise RemoteError(ErrorCode.BAD_MESSAGE, text)
        if deadline_ms(job) is None:
            text = f"{job.job} has no timeout yet because {self.why_no_timeout}: try again later"
            raise RemoteError(ErrorCode.CONFLICT, text)
        # The wanted sum is the cap of the command: another request, or an earlier try of this one,
        # may extend the job before the command is applied.
        sum_ms = min(round(seconds * 1000), extension_cap_ms(job))
        if sum_ms <= job.extension_ms:
            return job.extension_ms / 1000.0
        command = ExtendJob(job=job.job, by_ms=sum_ms, cap_ms=sum_ms, by=who)
        accepted = await self.committer.commit(command)
        self.log.info("job_extended", job=job.job, by=who, extended_s=accepted.value / 1000.0)
        return accepted.value / 1000.0
