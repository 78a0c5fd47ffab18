"""What must hold in the state of a datacenter after every command, whatever it was."""

from __future__ import annotations

from squall.cluster.datacenter.records import JobRecord
from squall.cluster.datacenter.state_machine import Datacenter
from squall.cluster.protocol.job_keys import AttemptKey


def check_state(machine: Datacenter) -> None:
    """What must hold after every command, whatever it was."""
    tables = machine.tables
    held: dict[tuple[str, int], set[AttemptKey]] = {}
    for share, attempts in tables.attempts.items():
        first = tables.attempt_floor + 1 if tables.is_copied(share.job) else 1
        assert [a.number - first for a in attempts] == list(range(len(attempts)))
        live = [a for a in attempts if a.state == "live"]
        assert not live or live == [attempts[-1]], f"{share}: an old attempt lives"
        for a in live:
            key = AttemptKey(share.job, share.workflow, share.share, a.number)
            held.setdefault((a.node, a.slot), set()).add(key)
            assert key in tables.live[a.node]
    assert {slot: set(use.attempts) for slot, use in tables.slots.items()} == held
    for slot, use in tables.slots.items():
        assert {key.job for key in use.attempts} == {use.job}, f"two jobs on {slot}"
    for job in tables.jobs.values():
        check_job(job, machine)
    for entry in tables.keys.values():
        assert entry.expires_ms or entry.job in tables.jobs


def check_job(job: JobRecord, machine: Datacenter) -> None:
    tables = machine.tables
    for each in job.workflows:
        if each.started_ms or each.placed:
            below = [w for w in job.workflows if w.layer < each.layer]
            assert all(w.over for w in below), f"{each.name} runs before its layer"
    if job.over:
        assert all(w.over for w in job.workflows)
        assert not tables.shares_of.get(job.job)
