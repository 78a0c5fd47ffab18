"""A client whose managers are named by DNS: it finds them, and those that replaced them."""

from __future__ import annotations

import pytest

from squall.cluster.client.errors import Unreachable
from tests.fakes.wire import FakeNetwork, run
from tests.unit.cluster.client.lab.manager import Manager, Person

NAME = ("srv:_squall._tcp.example", 0)


def test_a_name_leads_to_the_managers_and_the_messages_show_it() -> None:
    async def main() -> None:
        network = FakeNetwork()
        leads = Manager(network, 2)
        follows = Manager(network, 1, shared=leads)
        follows.primary = "m2:2"
        await leads.start()
        await follows.start()
        network.names.publish(NAME, [leads.address, follows.address], ttl_s=30.0)
        person = Person(network, names=[NAME])
        await person.client.nodes()
        assert leads.asked[-1] == "ListNodes"
        assert person.client.managers.shown == "srv:_squall._tcp.example"
        await person.close()
        await leads.stop()
        await follows.stop()

    run(main())


def test_an_address_that_answers_nothing_costs_no_dial_timeout() -> None:
    async def main() -> None:
        network = FakeNetwork()
        lives = Manager(network, 3)
        await lives.start()
        dead = [("10.0.0.1", 7400), ("10.0.0.2", 7400)]
        network.silent.update(dead)
        network.names.publish(NAME, [*dead, lives.address], ttl_s=30.0)
        for owner in range(5):
            person = Person(network, names=[NAME], owner=str(owner))
            began = person.world.clock.now()
            await person.client.nodes()
            assert person.world.clock.now() - began < 0.5
            await person.close()
        await lives.stop()

    run(main())


def test_managers_that_were_all_replaced_are_found_by_their_name() -> None:
    async def main() -> None:
        network = FakeNetwork()
        old = Manager(network, 1)
        new = Manager(network, 4, shared=old)
        await old.start()
        network.names.publish(NAME, [old.address], ttl_s=300.0)
        person = Person(network, names=[NAME])
        await person.client.nodes()
        await old.stop()
        await new.start()
        network.names.publish(NAME, [new.address], ttl_s=300.0)
        await person.client.nodes()
        assert new.asked[-1] == "ListNodes"
        await person.close()
        await new.stop()

    run(main())


def test_a_plain_address_is_asked_while_the_dns_server_is_down() -> None:
    async def main() -> None:
        network = FakeNetwork()
        lives = Manager(network, 1)
        await lives.start()
        network.names.is_down = True
        person = Person(network, lives, names=[NAME])
        began = person.world.clock.now()
        await person.client.nodes()
        assert person.world.clock.now() - began < 0.5
        await person.close()
        await lives.stop()

    run(main())


def test_a_missing_name_is_reported_in_one_line() -> None:
    async def main() -> None:
        person = Person(FakeNetwork(), names=[NAME])
        with pytest.raises(Unreachable) as failed:
            await person.client.nodes()
        assert str(failed.value) == (
            "no manager answers: srv:_squall._tcp.example: no such name; asked dns:53"
        )
        await person.close()

    run(main())


def test_a_name_that_appears_later_is_found_by_the_request_that_waits() -> None:
    async def main() -> None:
        network = FakeNetwork()
        lives = Manager(network, 1)
        await lives.start()
        network.names.missing_s = 1.0
        person = Person(network, names=[NAME])
        clock = person.world.clock

        async def publish() -> None:
            await clock.sleep(1.5)
            network.names.publish(NAME, [lives.address], ttl_s=30.0)

        person.tasks.start("publish", publish())
        await person.client.nodes()
        assert lives.asked[-1] == "ListNodes"
        await person.close()
        await lives.stop()

    run(main())
