"""The managers that a client learns from its answers, and those that relay for it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from squall.cluster.client.cluster_client import ClusterClient
from squall.cluster.client.errors import Unreachable
from squall.cluster.protocol.job_keys import JobId
from squall.cluster.protocol.messages import AdjustJob, JobView
from tests.fakes.wire import FakeNetwork, run
from tests.unit.cluster.client.lab.manager import BUNDLE, Manager, Person, submission

JOB = JobId("t-1")
REQUESTS: dict[str, Callable[[ClusterClient], Awaitable[object]]] = {
    "nodes": lambda client: client.nodes(),
    "jobs": lambda client: client.jobs(),
    "status": lambda client: client.status(JOB),
    "watch": lambda client: anext(client.follow(JOB)),
    "why": lambda client: client.why(JOB),
    "cancel": lambda client: client.cancel(JOB),
    "adjust": lambda client: client.adjust(AdjustJob(job=JOB, rate_per_s=1.0)),
    "drain": lambda client: client.drain("w1"),
}


@pytest.mark.parametrize("request_name", REQUESTS)
def test_every_answer_names_the_managers_that_replaced_those_of_the_client(
    request_name: str,
) -> None:
    ask = REQUESTS[request_name]

    async def main() -> None:
        network = FakeNetwork()
        old = Manager(network, 1)
        new = Manager(network, 4, shared=old)
        await old.start()
        old.managers = ["m4:4"]
        old.view[JOB] = JobView(job=JOB, state="running", file="shop.py")
        old.say("placed")
        first = Person(network, old)
        await ask(first.client)
        assert first.met == [new.address]
        # All that it names are replaced while it runs.
        await old.stop()
        await new.start()
        await ask(first.client)
        assert len(new.asked) == 1 and first.client.managers.shown == "m1:1"
        # The next command names them too, and remembers.
        await first.close()
        second = Person(network, old, remembered=first.met, owner="2")
        await ask(second.client)
        assert len(new.asked) == 2
        await second.close()
        await new.stop()

    run(main())


@pytest.mark.parametrize("unreachable", ["refuses", "silent"])
def test_a_manager_relays_for_a_client_that_cannot_reach_the_one_that_leads(
    unreachable: str,
) -> None:
    async def main() -> None:
        network = FakeNetwork()
        leads = Manager(network, 9)
        follows = Manager(network, 1, shared=leads)
        await follows.start()
        follows.primary = "m9:9"
        if unreachable == "silent":
            network.silent.add(leads.address)
        # It learns of the other only from the one that it can reach.
        person = Person(network, follows)
        await person.client.nodes()
        assert follows.asked[-1] == "Relay ListNodes"
        # As long as the leader is out of reach, the next request is relayed at once.
        before = len(follows.asked)
        await person.client.nodes()
        assert follows.asked[before:] == ["Relay ListNodes"]
        # A bundle goes to the manager that relays.
        accepted, _ = await person.client.submit(submission(), BUNDLE, person.journal)
        assert follows.asked[before + 1 :] == ["OfferBlob", "Relay SubmitJob"]
        follows.say("placed")
        for name, ask in REQUESTS.items():
            if name != "watch":
                await ask(person.client)
        assert (await anext(person.client.follow(accepted.job))).items
        assert leads.asked == []
        # It is asked itself as soon as there is a link.
        network.silent.clear()
        await leads.start()
        while "ListNodes" not in leads.asked:
            await asyncio.sleep(0.1)
            await person.client.nodes()
        before = len(follows.asked)
        await person.client.nodes()
        assert len(follows.asked) == before
        await person.close()
        for manager in (leads, follows):
            await manager.stop()

    run(main())


def test_a_client_that_a_manager_sends_to_its_gates_follows_its_job_there() -> None:
    async def main() -> None:
        network = FakeNetwork()
        manager, gate = Manager(network, 1), Manager(network, 7)
        await manager.start()
        await gate.start()
        gate.group, gate.managers = "gates", ["m7:7"]
        manager.gates = "m7:7"
        person = Person(network, manager)
        accepted, _ = await person.client.submit(submission(), BUNDLE, person.journal, "k")
        gate.end(accepted.job, "completed")
        # The manager knows no job of the gates: asking it would look like a loss.
        followed = [each.state async for each in person.client.follow(accepted.job, known=True)]
        assert followed[-1] == "completed"
        assert (await person.client.status(accepted.job)).state == "completed"
        assert person.client.managers.shown == "m7:7"
        # What the given address leads to is still the manager.
        assert person.met == []
        await person.close()
        await manager.stop()
        await gate.stop()

    run(main())


def test_gates_that_do_not_answer_are_named_with_the_way_around_them() -> None:
    async def main() -> None:
        network = FakeNetwork()
        manager = Manager(network, 1)
        await manager.start()
        manager.gates = "m7:7,m8:8"
        person = Person(network, manager, reconnect_timeout_s=2.0)
        with pytest.raises(Unreachable) as failed:
            await person.client.submit(submission(), BUNDLE, person.journal, "k")
        assert str(failed.value).startswith("submit to m7:7,m8:8, or here with --direct; no gate ")
        await person.close()
        await manager.stop()

    run(main())


@pytest.mark.parametrize(
    ("failover_s", "within_s", "answered"),
    [(14.0, None, True), (0.0, None, False), (14.0, 5.0, False)],
)
def test_a_question_waits_as_long_as_an_election_may_take_unless_the_user_said_how_long(
    failover_s: float, within_s: float | None, answered: bool
) -> None:
    async def main() -> None:
        network = FakeNetwork()
        manager = Manager(network, 1)
        await manager.start()
        manager.leads, manager.failover_s = False, failover_s
        person = Person(network, manager)
        question = asyncio.ensure_future(person.client.nodes(within_s))
        await asyncio.sleep(13.0)
        manager.leads = True
        if answered:
            await question
        else:
            with pytest.raises(
                Unreachable, match=r"gave up after [45] s: no manager leads the group"
            ):
                await question
        await person.close()
        await manager.stop()

    run(main())
