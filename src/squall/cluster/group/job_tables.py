"""What the parts of a control group read of its state machine: its jobs and their attempts.

Managers and gates have different state machines (`cluster.datacenter`, `cluster.assignments`). The
parts in this folder serve both: they see the state through these protocols, and change it only by
commands that their owner makes. To a manager an attempt is one share on one worker; to a gate it is
the part of one datacenter in one handover.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol, TypeVar

from squall.cluster.protocol.job_keys import AttemptKey, JobId
from squall.cluster.protocol.messages import JobState
from squall.cluster.protocol.submission import Submission


class GroupJob(Protocol):
    """A job, as every control group has it."""

    @property
    def job(self) -> JobId: ...
    @property
    def op(self) -> int:
        """The op number of the command that created it: a later job has a higher one."""
        ...

    @property
    def key(self) -> str: ...
    @property
    def principal(self) -> str: ...
    @property
    def leader(self) -> str:
        """The member that merges its telemetry and serves its stream (R1)."""
        ...

    @property
    def submission(self) -> Submission: ...
    @property
    def created_ms(self) -> int: ...
    @property
    def started_ms(self) -> int:
        """0: its load has not begun."""
        ...

    @property
    def state(self) -> JobState: ...
    @property
    def stop(self) -> str:
        """Why it is being stopped; "" if it is not."""
        ...

    @property
    def over(self) -> bool: ...
    @property
    def reason(self) -> str: ...
    @property
    def exit_code(self) -> int: ...
    @property
    def history(self) -> str:
        """The blob with the events of a job that is over."""
        ...


Job = TypeVar("Job", bound=GroupJob)
Job_co = TypeVar("Job_co", bound=GroupJob, covariant=True)


class JobTables(Protocol[Job_co]):
    """The jobs of a group."""

    @property
    def group(self) -> str:
        """The id of the group, from which job ids are made; "" before its first command."""
        ...

    @property
    def keys(self) -> Mapping[tuple[str, str], object]:
        """The idempotency keys of submissions, as (principal, key)."""
        ...

    @property
    def jobs(self) -> Mapping[JobId, Job_co]: ...
    @property
    def active(self) -> Mapping[JobId, None]:
        """The jobs that are not over."""
        ...


class HoldsJobs(Protocol[Job_co]):
    """A state machine with jobs. Its tables are another object after a snapshot was loaded."""

    @property
    def tables(self) -> JobTables[Job_co]: ...


# What the leader of a job reads, to show it while it runs.


class LiveChange(Protocol):
    """What an operator changed of a workflow's load."""

    @property
    def paused(self) -> bool: ...
    @property
    def rate_per_s(self) -> float | None: ...


class LiveWorkflow(Protocol):
    """A workflow of a running job."""

    @property
    def name(self) -> str: ...
    @property
    def started_ms(self) -> int: ...
    @property
    def running(self) -> bool: ...
    @property
    def over(self) -> bool: ...
    @property
    def elapsed_s(self) -> float:
        """How long it ran, once it is over."""
        ...

    @property
    def adjustment(self) -> LiveChange: ...


class LiveJob(GroupJob, Protocol):
    """A job with its workflows."""

    @property
    def workflows(self) -> Sequence[LiveWorkflow]: ...
    def workflow(self, name: str) -> LiveWorkflow | None: ...


class StoredRecord(Protocol):
    """The final record of an attempt, as the log names it."""

    @property
    def digest(self) -> str:
        """The blob; "": there is none."""
        ...


class LiveAttempt(Protocol):
    """One attempt of a job."""

    @property
    def node(self) -> str:
        """Who runs it."""
        ...

    @property
    def boot(self) -> str: ...
    @property
    def state(self) -> str:
        """ "live" while it runs."""
        ...

    @property
    def created_ms(self) -> int: ...
    @property
    def facts(self) -> StoredRecord | None: ...


class JobEventLine(Protocol):
    """Something that happened to a job."""

    @property
    def at_ms(self) -> int: ...
    @property
    def text(self) -> str: ...


Led = TypeVar("Led", bound=LiveJob)


class LiveTables(Protocol[Led]):
    """The jobs of a group with their attempts and events."""

    @property
    def group(self) -> str: ...
    @property
    def keys(self) -> Mapping[tuple[str, str], object]: ...
    @property
    def op(self) -> int:
        """The last applied command: nothing changed while it is the same."""
        ...

    @property
    def jobs(self) -> Mapping[JobId, Led]: ...
    @property
    def active(self) -> Mapping[JobId, None]: ...
    @property
    def events(self) -> Mapping[JobId, Sequence[JobEventLine]]: ...
    def shown_events(self, job: Led) -> Sequence[JobEventLine]: ...
    def attempt(self, key: AttemptKey) -> LiveAttempt | None: ...
    def attempts_of(self, job: JobId) -> Iterable[tuple[AttemptKey, LiveAttempt]]: ...
    def live_of(self, job: JobId) -> Sequence[tuple[AttemptKey, LiveAttempt]]: ...


class HoldsLiveJobs(Protocol[Led]):
    """A state machine whose jobs are shown while they run."""

    @property
    def tables(self) -> LiveTables[Led]: ...
