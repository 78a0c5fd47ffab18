"""Whatever the workers and the workflows: a phase takes free cores only, and all of its
users and iterations are shared out.
"""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from squall.cluster.datacenter.commands import AddWorker, Configure, PlaceWorkflows
from squall.cluster.datacenter.records import JobRecord
from squall.cluster.manager.primary.placement import least_cores, place_phase, pool_of, specs_of
from squall.cluster.protocol.messages import SpecValues
from squall.stats.manifest import Profile, WorkflowManifest
from tests.fakes.datacenter import Log, creation, submission, workflow

profiles = st.one_of(
    st.integers(1, 300).map(lambda vus: Profile(model="closed", vus=vus, max_vus=vus)),
    st.tuples(st.integers(1, 60), st.integers(1, 500)).map(
        lambda pair: Profile(model="iterations", vus=pair[0], max_vus=pair[0], iterations=max(pair))
    ),
    st.integers(1, 50).map(
        lambda vus: Profile(model="open", vus=vus, max_vus=vus + 5, rate_per_s=7.0)
    ),
)
plans = st.lists(
    st.tuples(profiles, st.sampled_from(["low", "auto", "normal", "high"]), st.booleans()),
    min_size=1,
    max_size=4,
)


def made(number: int, plan: tuple[Profile, str, bool]) -> WorkflowManifest:
    profile, priority, is_test = plan
    return workflow(
        f"W{number}",
        profile=profile,
        priority=priority,  # type: ignore[arg-type]
        is_test=is_test,
    )


@settings(max_examples=150, deadline=None)
@given(st.lists(st.integers(1, 6), min_size=1, max_size=5), st.lists(plans, max_size=3))
def test_cores_are_given_out_once_and_users_sum_up(
    workers: list[int], jobs: list[list[tuple[Profile, str, bool]]]
) -> None:
    log = Log()
    log.apply(Configure(group="g", lease_ms=1000))
    for number, cores in enumerate(workers):
        log.apply(AddWorker(node=f"w{number}", boot="b", cores=cores))
    tables = log.machine.tables
    for number, shapes in enumerate(jobs):
        phase = [made(index, shape) for index, shape in enumerate(shapes)]
        created = log.apply(creation(submission(*phase), f"k{number}"))
        job = tables.jobs[created.job]  # type: ignore[union-attr]
        pool = pool_of(tables, tables.workers.values())
        if least_cores(phase, pool) > pool.free_cores:
            continue
        placements = place_phase(tables, job, phase, pool, {})
        outcome = log.apply(PlaceWorkflows(job=job.job, placements=tuple(placements)))
        assert type(outcome).__name__ == "Accepted", outcome
        check_sums(tables.jobs[job.job])
    assert len(tables.slots) <= sum(workers)


def check_sums(job: JobRecord) -> None:
    for record in job.workflows:
        profile = job.submission.manifest.workflow(record.name).profile
        specs = specs_of(job, record, SpecValues())
        assert len(specs) == record.shares >= 1
        assert sum(spec.users for spec in specs) == profile.vus
        assert sum(spec.iterations for spec in specs) == profile.iterations
        ids = {spec.first_id + n * spec.id_step for spec in specs for n in range(spec.users)}
        assert len(ids) == profile.vus
