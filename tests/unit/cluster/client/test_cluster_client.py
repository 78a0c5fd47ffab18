"""A client against managers that restart, redirect, are busy, dead or strangers."""

from __future__ import annotations

import asyncio
from itertools import pairwise

import pytest

from squall.api.errors import ExitCode, SquallError
from squall.cluster.client.errors import JobLost, RequestRefused, Unreachable
from squall.cluster.protocol.job_keys import JobId
from squall.cluster.protocol.timeouts import RequestTimeouts
from squall.cluster.results.assemble import assemble
from squall.cluster.results.job_result import encode_result
from squall.engine.run_options import RunOptions
from tests.fakes.wire import FakeNetwork, run
from tests.unit.cluster.client.lab.manager import BUNDLE, Manager, MemoryDisk, Person, submission
from tests.unit.cluster.results.lab.records import ended, manifest, parts, record, window


def made_result() -> bytes:
    part = ended(record(0, [window(0, 0, [0.01])]), shares=1)
    return encode_result(assemble(manifest(), RunOptions(file="shop.py"), parts([part])))


def test_a_job_is_submitted_followed_and_its_result_fetched() -> None:
    async def main() -> None:
        network = FakeNetwork()
        manager = Manager(network, 1)
        await manager.start()
        person = Person(network, manager)
        accepted, entry = await person.client.submit(submission(), BUNDLE, person.journal)
        assert accepted.created and entry.job == accepted.job
        seen: list[str] = []
        manager.say("placed")
        async for answer in person.client.follow(accepted.job):
            seen += [item.text for item in answer.items]
            if seen == ["placed"]:
                manager.say("ended")
                manager.end(accepted.job, "completed", made_result())
        assert seen == ["placed", "ended"]
        result = await person.client.result(accepted.job)
        assert result.job == "k3f9-7"
        status = await person.client.counted_status(accepted.job)
        assert [each.counters.sent for each in status.workflows if each.counters] == [1]
        await person.journal.close(entry)
        assert person.disk.files == {}
        await person.close()
        await manager.stop()

    run(main())


def test_a_follower_says_what_it_has_seen_and_begins_anew_with_another_group() -> None:
    async def main() -> None:
        network = FakeNetwork()
        manager = Manager(network, 1)
        await manager.start()
        person = Person(network, manager)
        accepted, _ = await person.client.submit(submission(), BUNDLE, person.journal)
        # By the answers: an older one does not lower what was seen, a recovered group replaces it.
        answers = [("g", 9), ("g", 8), ("recovered", 3), ("recovered", 4)]
        manager.say("first")
        following = person.client.follow(accepted.job)
        for manager.group, manager.op in answers:
            await anext(following)
            manager.say("next")
        assert manager.seen == [("g", 7), ("g", 9), ("g", 9), ("recovered", 3)]
        await person.close()
        await manager.stop()

    run(main())


def test_the_key_is_on_disk_before_the_first_byte_and_a_repeat_is_the_same_job() -> None:
    async def main() -> None:
        network = FakeNetwork()
        manager = Manager(network, 1)
        disk = MemoryDisk()
        person = Person(network, manager, disk=disk, reconnect_timeout_s=0.5)
        with pytest.raises(Unreachable):
            await person.client.submit(submission(), BUNDLE, person.journal)
        assert len(disk.files) == 1 and network.live == {}
        await person.close()
        await manager.start()
        jobs: list[str] = []
        for owner in ("2", "3"):
            again = Person(network, manager, disk=disk, owner=owner)
            accepted, entry = await again.client.submit(submission(), BUNDLE, again.journal)
            jobs.append(accepted.job)
            await again.close()
        assert jobs[0] == jobs[1] and len(manager.keys) == 1
        # Once the end was seen, the same command is a new job.
        await again.journal.close(entry)
        last = Person(network, manager, disk=disk, owner="4")
        accepted, _ = await last.client.submit(submission(), BUNDLE, last.journal)
        assert accepted.created and accepted.job not in jobs
        await last.close()
        await manager.stop()

    run(main())


def test_two_clients_that_live_make_two_jobs() -> None:
    async def main() -> None:
        network = FakeNetwork()
        manager = Manager(network, 1)
        await manager.start()
        disk = MemoryDisk()
        one, two = (
            Person(network, manager, disk=disk),
            Person(network, manager, disk=disk, owner="2"),
        )
        two.alive.add("1")
        first, _ = await one.client.submit(submission(), BUNDLE, one.journal)
        second, _ = await two.client.submit(submission(), BUNDLE, two.journal)
        assert first.job != second.job
        for person in (one, two):
            await person.close()
        await manager.stop()

    run(main())


def test_ten_clients_that_submit_with_one_key_at_once_get_one_job_and_ten_results() -> None:
    async def main() -> None:
        network = FakeNetwork()
        manager = Manager(network, 1)
        await manager.start()
        disk = MemoryDisk()
        owners = [str(n) for n in range(10)]
        people = [Person(network, manager, disk=disk, owner=owner) for owner in owners]
        followed = 0

        async def runs(person: Person) -> tuple[str, bool, str]:
            nonlocal followed
            person.alive.update(owners)
            accepted, entry = await person.client.submit(
                submission(), BUNDLE, person.journal, "nightly"
            )
            followed += 1
            if followed == len(people):
                manager.end(accepted.job, "completed", made_result())
            states = [answer.state async for answer in person.client.follow(accepted.job)]
            result = await person.client.result(accepted.job, known=True)
            await person.journal.close(entry)
            assert states[-1] == "completed"
            return accepted.job, accepted.created, result.job

        answers = await asyncio.gather(*map(runs, people))
        assert len(manager.keys) == 1 and len({job for job, _, _ in answers}) == 1
        assert [created for _, created, _ in answers].count(True) == 1
        assert [result for _, _, result in answers] == ["k3f9-7"] * 10
        assert disk.files == {}
        for person in people:
            await person.close()
        await manager.stop()

    run(main())


def test_a_lost_answer_does_not_make_a_second_job() -> None:
    async def main() -> None:
        network = FakeNetwork()
        manager = Manager(network, 1)
        await manager.start()
        person = Person(network, manager)
        broken: list[None] = []

        def lose() -> None:
            if manager.asked[-1] == "SubmitJob" and not broken:
                broken.append(None)
                for connection in list(network.live):
                    network.lose(connection, ConnectionResetError("reset"))

        manager.before_answer = lose
        accepted, _ = await person.client.submit(submission(), BUNDLE, person.journal)
        assert broken and list(manager.keys.values()) == [accepted.job]
        assert manager.asked.count("SubmitJob") == 2
        await person.close()
        await manager.stop()

    run(main())


def test_a_bundle_is_offered_again_to_a_manager_that_does_not_have_it() -> None:
    async def main() -> None:
        network = FakeNetwork()
        manager = Manager(network, 1)
        await manager.start()
        person = Person(network, manager)
        lost: list[None] = []

        def lose() -> None:
            # Another one leads from now on, and was not among those that stored the bundle.
            if manager.asked[-1] == "OfferBlob" and not lost:
                lost.append(None)
                manager.blobs.drop(submission().bundle)

        manager.before_answer = lose
        accepted, _ = await person.client.submit(submission(), BUNDLE, person.journal)
        assert accepted.created
        assert [each for each in manager.asked if each in ("OfferBlob", "SubmitJob")] == [
            "OfferBlob", "SubmitJob", "OfferBlob", "SubmitJob",
        ]  # fmt: skip
        await person.close()
        await manager.stop()

    run(main())


def test_who_does_not_lead_sends_the_client_to_who_does() -> None:
    async def main() -> None:
        network = FakeNetwork()
        one = Manager(network, 1)
        two = Manager(network, 2, shared=one)
        one.primary = "m2:2"
        for manager in (one, two):
            await manager.start()
        # The leader is not among the addresses that the client was given.
        person = Person(network, one)
        await person.client.submit(submission(), BUNDLE, person.journal)
        assert one.asked == ["OfferBlob", "SubmitJob"] and two.asked == ["SubmitJob"]
        await person.close()
        for manager in (one, two):
            await manager.stop()

    run(main())


def test_a_dead_manager_is_passed_over_and_a_busy_one_waited_for() -> None:
    async def main() -> None:
        network = FakeNetwork()
        dead, busy = Manager(network, 1), Manager(network, 2)
        await busy.start()
        busy.busy = 3
        person = Person(network, dead, busy)
        assert (await person.client.nodes()).datacenter == "dc"
        await person.close()
        await busy.stop()

    run(main())


def test_a_follower_goes_on_where_it_was_after_a_restart_of_the_manager() -> None:
    async def main() -> None:
        network = FakeNetwork()
        manager = Manager(network, 1)
        await manager.start()
        person = Person(network, manager)
        accepted, _ = await person.client.submit(submission(), BUNDLE, person.journal)
        seen: list[str] = []
        manager.say("one")
        async for answer in person.client.follow(accepted.job):
            seen += [item.text for item in answer.items]
            if seen == ["one"]:
                await manager.stop()
                await manager.start()
                manager.say("two")
            elif seen == ["one", "two"]:
                manager.end(accepted.job, "completed")
        assert seen == ["one", "two"]
        await person.close()
        await manager.stop()

    run(main())


def test_a_follower_knows_how_long_it_is_out_of_contact() -> None:
    async def main() -> None:
        network = FakeNetwork()
        manager = Manager(network, 1)
        await manager.start()
        person = Person(network, manager)
        accepted, _ = await person.client.submit(submission(), BUNDLE, person.journal)
        manager.say("one")
        away: list[tuple[float, float]] = []
        async for answer in person.client.follow(accepted.job):
            assert person.client.out_of_contact_s() == (0.0, 0.0)
            if answer.items and not away:
                waiting = asyncio.ensure_future(_restarted(manager, person, away))
            if away:
                manager.end(accepted.job, "completed")
        await waiting
        ((lost_s, left_s),) = away
        assert 3.0 <= lost_s <= 3.6, "from the moment at which it was last heard"
        assert lost_s + left_s == pytest.approx(20.0)
        await person.close()
        await manager.stop()

    run(main())


@pytest.mark.parametrize("patience_s", [5.0, 20.0])
def test_a_manager_that_falls_silent_is_given_up_when_the_patience_is_over(
    patience_s: float,
) -> None:
    async def main() -> None:
        network = FakeNetwork()
        manager = Manager(network, 1)
        await manager.start()
        person = Person(network, manager, reconnect_timeout_s=patience_s)
        clock = person.world.clock
        accepted, _ = await person.client.submit(submission(), BUNDLE, person.journal)
        # A follower that gets nothing new is in contact all the same.
        following = person.client.follow(accepted.job)
        for _ in range(4):
            await anext(following)
        network.frozen = True
        began = clock.now()
        with pytest.raises(Unreachable):
            await anext(following)
        assert patience_s - 0.1 <= clock.now() - began <= patience_s + 1.0
        network.thaw()
        await person.close()
        await manager.stop()

    run(main())


async def _restarted(manager: Manager, person: Person, away: list[tuple[float, float]]) -> None:
    await asyncio.sleep(0.5)
    await manager.stop()
    await asyncio.sleep(3.0)
    away.append(person.client.out_of_contact_s())
    await manager.start()
    manager.say("two")


def test_where_questions_cost_a_follower_asks_again_after_a_pause_but_ends_at_once() -> None:
    async def main() -> None:
        network = FakeNetwork()
        manager = Manager(network, 1)
        await manager.start()
        person = Person(network, manager, timeouts=RequestTimeouts(follow_pause_s=3.0))
        clock = person.world.clock
        accepted, _ = await person.client.submit(submission(), BUNDLE, person.journal)
        manager.say("one")
        times: list[float] = []
        async for _ in person.client.follow(accepted.job):
            times.append(clock.now())
            manager.say("more")
            if len(times) == 3:
                manager.end(accepted.job, "completed")
        last = clock.now()
        assert all(later - former >= 3.0 for former, later in pairwise(times))
        assert len(times) >= 3 and last - times[-1] < 1.0
        await person.close()
        await manager.stop()

    run(main())


def test_managers_that_stay_away_are_told_of_with_exit_code_3() -> None:
    async def main() -> None:
        network = FakeNetwork()
        manager = Manager(network, 1)
        await manager.start()
        person = Person(network, manager, reconnect_timeout_s=5.0)
        accepted, _ = await person.client.submit(submission(), BUNDLE, person.journal)
        await manager.stop()
        with pytest.raises(Unreachable, match="no manager answers: m1:1") as caught:
            async for _ in person.client.follow(accepted.job):
                pass
        assert caught.value.exit_code == ExitCode.UNREACHABLE
        await person.close()

    run(main())


def test_a_wrong_secret_is_told_at_once() -> None:
    async def main() -> None:
        network = FakeNetwork()
        manager = Manager(network, 1)
        await manager.start(secret="the secret of another cluster")
        person = Person(network, manager, reconnect_timeout_s=600.0)
        clock = person.world.clock
        began = clock.now()
        with pytest.raises(Unreachable, match="m1:1: wrong secret or not a Squall node"):
            await person.client.submit(submission(), BUNDLE, person.journal)
        assert clock.now() - began < 10.0
        await person.close()
        await manager.stop()

    run(main())


def test_a_manager_that_stood_still_is_not_called_a_stranger() -> None:
    """It accepts and says nothing for a while, as one with another secret would."""

    async def main() -> None:
        network = FakeNetwork()
        manager = Manager(network, 1)
        await manager.start()
        person = Person(network, manager, reconnect_timeout_s=60.0)
        accepted, _ = await person.client.submit(submission(), BUNDLE, person.journal)
        clock = person.world.clock
        network.frozen = True
        asked = asyncio.ensure_future(person.client.status(accepted.job))
        await clock.sleep(20.0)
        assert not asked.done()
        network.thaw()
        assert (await asked).job == accepted.job
        await person.close()
        await manager.stop()

    run(main())


def test_a_manager_that_knew_the_secret_is_waited_for_when_it_closes_without_a_word() -> None:
    async def main() -> None:
        network = FakeNetwork()
        manager = Manager(network, 1)
        await manager.start()
        person = Person(network, manager, reconnect_timeout_s=60.0)
        accepted, _ = await person.client.submit(submission(), BUNDLE, person.journal)
        clock = person.world.clock
        await manager.stop()
        await manager.start(secret="the secret of another cluster")
        asked = asyncio.ensure_future(person.client.status(accepted.job))
        await clock.sleep(20.0)
        assert not asked.done()
        await manager.stop()
        await manager.start()
        assert (await asked).job == accepted.job
        await person.close()
        await manager.stop()

    run(main())


def test_an_unknown_job_is_one_clear_line() -> None:
    async def main() -> None:
        network = FakeNetwork()
        manager = Manager(network, 1)
        await manager.start()
        person = Person(network, manager)
        for ask in (person.client.status, person.client.cancel, person.client.result):
            with pytest.raises(
                RequestRefused, match="no job x-1 here; squall jobs lists them"
            ) as caught:
                await ask(JobId("x-1"))
            assert caught.value.exit_code == ExitCode.USAGE
        with pytest.raises(RequestRefused, match="no job x-1"):
            async for _ in person.client.follow(JobId("x-1")):
                pass
        await person.close()
        await manager.stop()

    run(main())


def test_a_job_without_a_result_says_why() -> None:
    async def main() -> None:
        network = FakeNetwork()
        manager = Manager(network, 1)
        await manager.start()
        person = Person(network, manager)
        accepted, _ = await person.client.submit(submission(), BUNDLE, person.journal)
        with pytest.raises(SquallError, match="is running; it has a result once it has ended"):
            await person.client.result(accepted.job)
        manager.end(accepted.job, "failed")
        with pytest.raises(SquallError, match="ended \\(failed\\) without a result"):
            await person.client.result(accepted.job)
        await person.close()
        await manager.stop()

    run(main())


def test_a_refused_submission_leaves_no_key_behind() -> None:
    async def main() -> None:
        network = FakeNetwork()
        manager = Manager(network, 1)
        await manager.start()
        person = Person(network, manager)
        with pytest.raises(SquallError):
            # Another content than the name says: the manager does not take it.
            await person.client.submit(submission(b"other"), BUNDLE, person.journal)
        assert manager.keys == {} and person.disk.files == {}
        await person.close()
        await manager.stop()

    run(main())


def test_a_job_that_was_known_and_is_not_any_more_is_called_lost() -> None:
    async def main() -> None:
        network = FakeNetwork()
        manager = Manager(network, 1)
        await manager.start()
        person = Person(network, manager)
        accepted, _ = await person.client.submit(submission(), BUNDLE, person.journal)
        manager.say("placed")
        following = person.client.follow(accepted.job)
        await anext(following)
        manager.view.clear()
        with pytest.raises(JobLost, match=f"job {accepted.job} is lost") as lost:
            await anext(following)
        assert lost.value.exit_code is ExitCode.UNREACHABLE
        with pytest.raises(JobLost):
            await person.client.result(accepted.job, known=True)
        with pytest.raises(RequestRefused, match="squall jobs lists them"):
            await anext(person.client.follow(JobId("t-99")))
        await person.close()
        await manager.stop()

    run(main())
