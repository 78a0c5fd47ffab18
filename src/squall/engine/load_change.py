"""Changes of a running load by an operator: which are possible, and what each workflow has now.

Pure. The controller of a run on one machine keeps a `LoadChanges`; the managers of a cluster keep
the same facts in their log and use the rules of this module. A change never alters what was
planned before it: planned starts are counted by the core processes, which follow the change, and
starts that fall into a pause are neither planned nor missed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

import msgspec

from squall.api.errors import UsageError
from squall.engine.core_protocol import Adjust, ShareSpec
from squall.stats.manifest import FileManifest, WorkflowManifest

USERS_MAX = 1_000_000
RATE_MAX_PER_S = 1_000_000.0
CHANGES_MAX = 200
"""Changes of a run that its result names; the latest are kept."""


class UnknownWorkflow(UsageError):
    """A change names a workflow that the run does not have."""


class LoadChange(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What an operator asks for; None leaves it as it is."""

    workflow: str = ""
    """Empty: the only test workflow, or all of them for pause and resume."""
    paused: bool | None = None
    rate_per_s: float | None = None
    vus: int | None = None


class AppliedChange(msgspec.Struct, frozen=True, kw_only=True):
    """A change of the load that took effect, in the order in which they were made."""

    workflow: str
    at_s: float
    """On the run's clock."""
    paused: bool | None = None
    rate_per_s: float | None = None
    vus: int | None = None
    by: str = ""


class LoadChanges:
    """The changes of one run.

    Invariant: `wanted(name)` is what the last change of each kind set for that workflow, whether it
    runs already or starts later; None if nothing was changed.
    """

    def __init__(self, manifest: FileManifest) -> None:
        self._manifest = manifest
        self._wanted: dict[str, Adjust] = {}
        self.applied: list[AppliedChange] = []

    def apply(self, change: LoadChange, at_s: float, over: Collection[str] = ()) -> list[str]:
        """Returns the names of the workflows whose load it changes. Raises `UsageError` if it
        changes none; then nothing has happened."""
        if change.paused is None and change.rate_per_s is None and change.vus is None:
            raise UsageError("nothing to change: give a rate, users, pause or resume")
        fault = change_fault(change.rate_per_s, change.vus)
        if fault:
            raise UsageError(fault)
        names = changed_workflows(self._manifest, change)
        left = [name for name in names if name not in over]
        if not left:
            raise UsageError(f"{', '.join(names) or 'the load'} is over")
        for name in left:
            before = self._wanted.get(name, Adjust())
            self._wanted[name] = Adjust(
                paused=before.paused if change.paused is None else change.paused,
                rate_per_s=before.rate_per_s if change.rate_per_s is None else change.rate_per_s,
                vus=before.vus if change.vus is None else change.vus,
            )
            self.applied.append(
                AppliedChange(
                    workflow=name,
                    at_s=at_s,
                    paused=change.paused,
                    rate_per_s=change.rate_per_s,
                    vus=change.vus,
                )
            )
        del self.applied[:-CHANGES_MAX]
        return left

    def wanted(self, workflow: str) -> Adjust | None:
        return self._wanted.get(workflow)

    def target_per_s(self, workflow: str) -> float | None:
        """Planned starts per second that the changes set; None: those of the plan."""
        wanted = self._wanted.get(workflow, Adjust())
        return 0.0 if wanted.paused else wanted.rate_per_s

    def starts_after(self, spec: ShareSpec, at_s: float) -> int:
        """Starts of a share of an open model from a moment of its workflow to the end, under the
        load that is wanted now: what is lost with a process that dies then."""
        wanted = self._wanted.get(spec.workflow, Adjust())
        if wanted.paused:
            return 0
        # It imports numpy, which the start of a run must not wait for.
        from squall.engine.load.schedule import StartSchedule, with_rate

        profile = spec.profile
        if wanted.rate_per_s is not None:
            profile = with_rate(profile, wanted.rate_per_s)
        return StartSchedule(profile, spec.share, spec.shares, start_at_s=at_s).total


def changed_workflows(
    manifest: FileManifest, change: LoadChange, *, owner: str = "the run"
) -> tuple[str, ...]:
    """The workflows whose load a change concerns. `owner` is what a message calls the run."""
    tests = [w for w in manifest.workflows if w.is_test]
    names = [w.name for w in tests]
    if change.workflow:
        if change.workflow not in names:
            raise UnknownWorkflow(
                f"{owner} has no test workflow {change.workflow}: it has {', '.join(names)}"
            )
        names = [change.workflow]
    elif len(names) > 1 and (change.rate_per_s is not None or change.vus is not None):
        raise UsageError(f"{owner} has several test workflows: name one of {', '.join(names)}")
    for workflow in tests:
        if workflow.name not in names:
            continue
        if change.rate_per_s is not None and not workflow.profile.is_open:
            raise UsageError(f"{workflow.name} has users, not a rate: give --vus")
        if change.vus is not None and workflow.profile.is_open:
            raise UsageError(f"{workflow.name} has a rate, not users: give --rate")
    return tuple(names)


def change_fault(rate_per_s: float | None, vus: int | None) -> str:
    """Returns why a running load cannot be changed to these values, or ""."""
    if rate_per_s is not None and not 0.0 <= rate_per_s <= RATE_MAX_PER_S:
        return f"rate_per_s is {rate_per_s:g}; it must be between 0 and {RATE_MAX_PER_S:,.0f}"
    if vus is not None and not 0 <= vus <= USERS_MAX:
        return f"vus is {vus}; it must be between 0 and {USERS_MAX:,}"
    return ""


def change_line(change: AppliedChange) -> str:
    """`Shop: rate set to 300/s at 12.3 s by ann`."""
    changes: list[str] = []
    if change.rate_per_s is not None:
        changes.append(f"rate set to {change.rate_per_s:g}/s")
    if change.vus is not None:
        changes.append(f"users set to {change.vus}")
    if change.paused is not None:
        changes.append("paused" if change.paused else "resumed")
    who = f" by {change.by}" if change.by else ""
    name = f"{change.workflow}: " if change.workflow else ""
    return f"{name}{', '.join(changes) or 'unchanged'} at {change.at_s:.1f} s{who}"


def iterations_taken_away(workflow: WorkflowManifest, changes: Iterable[AppliedChange]) -> int:
    """At most so many iterations belonged to users that an operator took away."""
    own = [each for each in changes if each.workflow in ("", workflow.name)]
    profile = workflow.profile
    least = min((each.vus for each in own if each.vus is not None), default=profile.vus)
    return max(profile.vus - least, 0) * profile.iterations_per_vu
