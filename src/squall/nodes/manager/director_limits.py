"""The limits on a job's time: its deadline, stuck load, the length of a workflow.

Deadlines are on the group's clock, so that they survive a change of primary. Stuck means
that no step was executed for `stuck_s` while load is planned; waiting for cores is not
being stuck. Pure but for the effects it asks for.
"""

from __future__ import annotations

from squall.engine.layers import topological_layers
from squall.engine.schedule import UserSchedule
from squall.nodes.datacenter.commands import StopJob, StopWorkflow
from squall.nodes.datacenter.records import JobRecord, WorkflowRecord
from squall.nodes.manager.director_facts import Facts, Progress
from squall.nodes.manager.losses import elapsed_s
from squall.nodes.manager.placement import profile_of
from squall.nodes.manager.session_stops import is_always
from squall.stats.manifest import FileManifest, Profile
from squall.stats.snapshot import target_rate_per_s


def deadline_ms(job: JobRecord) -> int | None:
    """With its extensions; None while it has no limit."""
    return job.deadline_ms + job.extension_ms if job.deadline_ms else None


def extension_cap_ms(job: JobRecord) -> int:
    """All extensions of a job together: a quarter of its time, at least a minute."""
    base_ms = job.deadline_ms - (job.created_ms if job.limited else 0)
    return max(60_000, base_ms // 4) if job.limited else 60_000


def run_ms(manifest: FileManifest, facts: Facts, done: set[str]) -> int:
    """The longest way through the workflows that are not over."""
    timers = facts.timers
    total_s = timers.job_margin_s
    layers = topological_layers({w.name: w.depends for w in manifest.workflows}, "workflow")
    for layer in layers:
        left = [manifest.workflow(name) for name in layer if name not in done]
        each_s = [w.profile.duration_s + w.profile.grace_s + timers.stop_grace_s for w in left]
        alone_s = sum(
            s for w, s in zip(left, each_s, strict=True) if w.is_test and w.priority == "exclusive"
        )
        total_s += max(each_s, default=0.0) + alone_s + timers.outbox_wait_s
    return round(total_s * 1000)


def check_limits(facts: Facts, job: JobRecord) -> float:
    """Ends what exceeds its time; the moment at which to look again."""
    if job.stop:
        return _not_yet(facts) or _always_limits(facts, job)
    limit_ms = deadline_ms(job)
    look_at = float("inf")
    if limit_ms is not None:
        if facts.group_ms >= limit_ms:
            base_s = (limit_ms - job.extension_ms - job.created_ms) / 1000.0
            text = f"timeout after {base_s:g} s"
            if job.extension_ms:
                text += f" and extensions of {job.extension_ms / 1000.0:g} s"
            _stop(facts, job, text)
            return facts.now + 1.0
        look_at = facts.at(limit_ms)
    # Its own time is over whoever was away; whether a worker is late, only workers can say.
    return min(look_at, _not_yet(facts) or min(_stuck(facts, job), _lengths(facts, job)))


def _not_yet(facts: Facts) -> float | None:
    """The moment before which workers are not judged, if it is still to come."""
    return facts.judges_from if facts.now < facts.judges_from else None


def _stop(facts: Facts, job: JobRecord, text: str) -> None:
    command = StopJob(job=job.job, kind="timeout", reason=text)
    facts.submit(f"stop {job.job}", command)


def _stuck(facts: Facts, job: JobRecord) -> float:
    running = [w for w in job.workflows if w.running and plans_load(facts, job, w)]
    if not running:
        facts.progress.pop(job.job, None)
        return float("inf")
    progress = facts.progress.setdefault(job.job, Progress(0, facts.now))
    longest_s = max(patience_s(facts, profile_of(job, w.name)) for w in running)
    silent_s = facts.now - progress.since
    if silent_s >= longest_s:
        text = f"stuck: no step was executed for {longest_s:g} s"
        told = [f"{node}: {why}" for node, why in standstills(facts, job)]
        more = f" (and {len(told) - 1} more shares)" if len(told) > 1 else ""
        _stop(facts, job, f"{text}; {told[0]}{more}" if told else text)
        return facts.now + 1.0
    return progress.since + longest_s


def standstills(facts: Facts, job: JobRecord) -> list[tuple[str, str]]:
    """What workers say of shares that run and execute nothing: (worker, why)."""
    found: list[tuple[str, str]] = []
    for key, attempt in facts.tables.live_of(job.job):
        status = facts.status(key, attempt.node, attempt.boot)
        if status is not None and status.phase == "running" and status.text:
            found.append((attempt.node, status.text))
    return found


def plans_load(facts: Facts, job: JobRecord, workflow: WorkflowRecord) -> bool:
    """Set-up work has its own upper bound and no plan to fall behind."""
    profile = profile_of(job, workflow.name)
    at_s = elapsed_s(workflow, facts.group_ms)
    if profile.model == "once" or workflow.adjustment.paused or at_s >= profile.duration_s:
        return False
    if profile.is_open:
        return bool(workflow.adjustment.rate_per_s or target_rate_per_s(profile, at_s))
    return UserSchedule(profile).target(at_s) > 0


def patience_s(facts: Facts, profile: Profile) -> float:
    """How long a workflow may execute nothing: longer where its users rest for long."""
    pause_s = max(profile.think_s[1] if profile.think_s else 0.0, profile.pacing_s or 0.0)
    return max(facts.timers.stuck_s, 2.0 * pause_s)


def _lengths(facts: Facts, job: JobRecord) -> float:
    """A workflow whose shares do not end by themselves is ended."""
    look_at = float("inf")
    for workflow in job.workflows:
        if not workflow.running or workflow.stop:
            continue
        profile = profile_of(job, workflow.name)
        allowed_s = profile.duration_s + profile.grace_s + 2.0 * facts.timers.stop_grace_s
        allowed_s += 5.0 * facts.interval_s() + 1.0
        live = facts.tables.live_of(job.job, workflow.name)
        since_ms = workflow.started_ms
        if profile.model == "once":
            since_ms = max((facts_.created_ms for _, facts_ in live), default=since_ms)
            since_ms = max(since_ms, workflow.started_ms)
        at_ms = since_ms + round(allowed_s * 1000)
        if live and facts.group_ms >= at_ms:
            text = f"did not end within {allowed_s:g} s"
            command = StopWorkflow(
                job=job.job, workflow=workflow.name, kind="timeout", error=text, now=True
            )
            facts.submit(f"halt {job.job} {workflow.name}", command)
            at_ms = facts.group_ms + 1000
        if live:
            look_at = min(look_at, facts.at(at_ms))
    return look_at


def _always_limits(facts: Facts, job: JobRecord) -> float:
    """After a stop, a `when="always"` workflow has a limit of its own."""
    look_at = float("inf")
    for workflow in job.workflows:
        if workflow.over or not is_always(job, workflow.name):
            continue
        if workflow.stop or any(
            other.layer < workflow.layer and not other.over for other in job.workflows
        ):
            continue
        # It waited for the others to stop; with the last of them its own time begins.
        before_ms = max((o.ended_ms for o in job.workflows if o.layer < workflow.layer), default=0)
        since_ms = max(before_ms, job.stop_ms)
        at_ms = since_ms + round(facts.timers.always_limit_s * 1000)
        if facts.group_ms >= at_ms:
            text = f"was not over {facts.timers.always_limit_s:g} s after the stop"
            command = StopWorkflow(job=job.job, workflow=workflow.name, kind="timeout", error=text)
            facts.submit(f"halt {job.job} {workflow.name}", command)
            at_ms = facts.group_ms + 1000
        look_at = min(look_at, facts.at(at_ms))
    return look_at
