"""How commands about workers and the group change the tables.

Each function checks first and changes afterwards; what it refuses changes nothing.
"""

from __future__ import annotations

from squall.nodes.datacenter.commands import (
    Accepted,
    AddWorker,
    Configure,
    DrainWorker,
    ForgetWorkers,
    LoseWorkers,
    Outcome,
    Rejected,
)
from squall.nodes.datacenter.records import RecordFacts, WorkerRecord
from squall.nodes.datacenter.tables import Tables, replace
from squall.nodes.identity import AttemptKey

FORMER_MAX = 16


def configure(tables: Tables, command: Configure) -> Outcome:
    if command.lease_ms < 1:
        return Rejected(text=f"a lease of {command.lease_ms} ms is no lease")
    if not (command.group or tables.group):
        return Rejected(text="the group has no name")
    changed = command.lease_ms != tables.lease_ms or command.group not in ("", tables.group)
    tables.group = command.group or tables.group
    tables.lease_ms = command.lease_ms
    for live in [keys for _, keys in sorted(tables.live.items())]:
        for key in sorted(live):
            facts = tables.attempts[key.of][key.attempt - 1]
            if facts.lease_ms < command.lease_ms:
                tables.put_attempt(key, replace(facts, lease_ms=command.lease_ms))
    return Accepted(changed=changed, value=tables.lease_ms)


def add_worker(tables: Tables, command: AddWorker) -> Outcome:
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
        since_ms=tables.group_ms,
        former=former,
    )
    if before is not None and not repeated:
        _former_boot(tables, before, command)
    return Accepted(changed=not (repeated and before is not None and not before.gone))


def drain_worker(tables: Tables, command: DrainWorker) -> Outcome:
    worker = tables.workers.get(command.node)
    if worker is None:
        return Rejected(text=f"no worker {command.node}")
    tables.workers[command.node] = replace(worker, draining=command.draining)
    running = len(tables.live.get(command.node, {}))
    return Accepted(changed=worker.draining != command.draining, value=running)


def lose_workers(tables: Tables, command: LoseWorkers) -> Outcome:
    changed = False
    for node, boot in command.workers:
        worker = tables.workers.get(node)
        if worker is None or worker.boot != boot or worker.gone:
            continue
        tables.workers[node] = replace(worker, gone=True, since_ms=tables.group_ms)
        changed = True
    return Accepted(changed=changed)


def forget_workers(tables: Tables, command: ForgetWorkers) -> Outcome:
    changed = False
    for node in command.nodes:
        worker = tables.workers.get(node)
        if worker is not None and worker.gone and not tables.live.get(node):
            del tables.workers[node]
            tables.live.pop(node, None)
            changed = True
    return Accepted(changed=changed)


def _former_boot(tables: Tables, before: WorkerRecord, command: AddWorker) -> None:
    """A complete record ends its attempt; a cut is kept for its loss; a proof lets the
    loss be declared at once."""
    held = {facts.key: facts for facts in command.held}
    for key in sorted(tables.live.get(before.node, {})):
        attempt = tables.attempts[key.of][key.attempt - 1]
        if attempt.boot != before.boot:
            continue
        facts = held.get(key)
        if facts is not None and facts.complete:
            end_with(tables, key, facts)
            continue
        known = better(attempt.facts, facts)
        dead = attempt.dead or command.proven
        tables.put_attempt(key, replace(attempt, dead=dead, facts=known))


def end_with(tables: Tables, key: AttemptKey, facts: RecordFacts) -> None:
    attempt = tables.attempts[key.of][key.attempt - 1]
    tables.put_attempt(
        key,
        replace(attempt, state="ended", ended_ms=tables.group_ms, facts=facts, reason=facts.cut),
    )
    if facts.error:
        tables.event(key.job, f"{key.workflow} share {key.share}: {facts.error}")
    elif facts.cut:
        tables.event(key.job, f"{key.workflow} share {key.share} ended early: {facts.cut}")


def better(one: RecordFacts | None, other: RecordFacts | None) -> RecordFacts | None:
    """Of two cuts the one that covers more."""
    if one is None or other is None:
        return one or other
    return one if one.silent_from_s >= other.silent_from_s else other
