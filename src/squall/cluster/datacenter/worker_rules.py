"""Applies commands about workers and the group.

Each function checks first and changes afterwards: a rejected command changes nothing.
"""

from __future__ import annotations

from squall.cluster.datacenter.commands import (
    Accepted,
    AddWorker,
    CommandOutcome,
    Configure,
    DrainWorker,
    ForgetWorkers,
    LoseWorkers,
    Rejected,
)
from squall.cluster.datacenter.records import RecordFacts, WorkerRecord
from squall.cluster.datacenter.tables import Tables, replace
from squall.cluster.protocol.job_keys import AttemptKey

FORMER_MAX = 16


def configure(tables: Tables, command: Configure) -> CommandOutcome:
    if command.lease_ms < 1:
        return Rejected(text=f"a lease of {command.lease_ms} ms is no lease")
    if not (command.group or tables.group):
        return Rejected(text="the group has no name")
    changed = command.lease_ms != tables.lease_ms or command.group not in ("", tables.group)
    tables.group = command.group or tables.group
    tables.lease_ms = command.lease_ms
    for live in [keys for _, keys in sorted(tables.live.items())]:
        for key in sorted(live):
            facts = tables.known(key)
            if facts.lease_ms < command.lease_ms:
                tables.put_attempt(key, replace(facts, lease_ms=command.lease_ms))
    return Accepted(changed=changed, value=tables.lease_ms)


def add_worker(tables: Tables, command: AddWorker) -> CommandOutcome:
    if command.cores < 1 or not command.node or not command.boot:
        return Rejected(text=f"worker {command.node or '?'} with {command.cores} cores")
    before = tables.workers.get(command.node)
    if before is not None and command.boot in before.former:
        return Rejected(text=f"a newer boot of {command.node} is registered")
    repeated = before is not None and before.boot == command.boot
    if before is not None and repeated and before.cores != command.cores:
        return Rejected(text=f"{command.node} changed its cores without a new boot")
    former = before.former if before is not None else ()
    if before is not None and not repeated:
        former = (before.boot, *former)[:FORMER_MAX]
    tables.workers[command.node] = WorkerRecord(
        node=command.node,
        boot=command.boot,
        cores=command.cores,
        pid=command.pid,
        host=command.host,
        address=command.address,
        python=command.python,
        version=command.version,
        descriptors=command.descriptors,
        draining=before.draining if before is not None and repeated else False,
        drain_by_ms=before.drain_by_ms if before is not None and repeated else 0,
        since_ms=tables.group_ms,
        former=former,
    )
    if before is not None and not repeated:
        _former_boots(tables, command)
    return Accepted(changed=not (repeated and before is not None and not before.gone))


def drain_worker(tables: Tables, command: DrainWorker) -> CommandOutcome:
    worker = tables.workers.get(command.node)
    if worker is None:
        return Rejected(text=f"no worker {command.node}")
    by_ms = 0
    if command.draining and command.within_ms is not None:
        by_ms = tables.group_ms + max(command.within_ms, 1)
    tables.workers[command.node] = replace(worker, draining=command.draining, drain_by_ms=by_ms)
    live = tables.live.get(command.node, {})
    changed = worker.draining != command.draining
    does = "drains" if command.draining else "resumes"
    for job in sorted({key.job for key in live}):
        if changed:
            who = f"{command.by} {does} {command.node}" if command.by else f"{command.node} {does}"
            tables.event(job, who)
        tables.put_job(replace(tables.jobs[job], touched=tables.op))
    return Accepted(changed=changed, value=len(live))


def lose_workers(tables: Tables, command: LoseWorkers) -> CommandOutcome:
    changed = False
    for node, boot in command.workers:
        worker = tables.workers.get(node)
        if worker is None or worker.boot != boot or worker.gone:
            continue
        tables.workers[node] = replace(worker, gone=True, since_ms=tables.group_ms)
        changed = True
    return Accepted(changed=changed)


def forget_workers(tables: Tables, command: ForgetWorkers) -> CommandOutcome:
    changed = False
    for node in command.nodes:
        worker = tables.workers.get(node)
        if worker is not None and worker.gone and not tables.live.get(node):
            del tables.workers[node]
            tables.live.pop(node, None)
            changed = True
    return Accepted(changed=changed)


def _former_boots(tables: Tables, command: AddWorker) -> None:
    """Applies what a new boot reports about the former ones: a complete record ends its attempt, a
    cut one is kept for its loss, and a proof allows the loss of the boot that it names at once (R5,
    R6). A boot that no proof names may still run, also if a later boot is proven dead."""
    held = {facts.key: facts for facts in command.held}
    for key in sorted(tables.live.get(command.node, {})):
        attempt = tables.known(key)
        facts = held.get(key)
        if facts is not None and facts.complete:
            end_with(tables, key, facts)
            continue
        known = better(attempt.facts, facts)
        attempt = replace(attempt, facts=known)
        # The first proof is the closest to the death.
        if not attempt.dead and attempt.boot in command.dead_boots:
            attempt = replace(attempt, dead=True, dead_ms=command.dead_ms)
        tables.put_attempt(key, attempt)


def end_with(tables: Tables, key: AttemptKey, facts: RecordFacts) -> None:
    attempt = tables.known(key)
    tables.put_attempt(
        key,
        replace(attempt, state="ended", ended_ms=tables.group_ms, facts=facts, reason=facts.cut),
    )
    if facts.error:
        tables.event(key.job, f"{key.workflow} share {key.share}: {facts.error}")
    elif facts.cut:
        share = f"{key.workflow} share {key.share} on {attempt.node}"
        tables.event(key.job, f"{share} ended early: {facts.cut}")


def better(one: RecordFacts | None, other: RecordFacts | None) -> RecordFacts | None:
    """The cut record that covers more."""
    if one is None or other is None:
        return one or other
    return one if one.silent_from_s >= other.silent_from_s else other
