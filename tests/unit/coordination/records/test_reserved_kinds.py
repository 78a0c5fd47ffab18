"""An application cannot write the records and streams of the library."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any

import pytest

from squall.coordination import ANY, Append, ConfigurationError, Coordinator, Delete, Put, Ttl
from squall.coordination.election.term import Term
from squall.coordination.records import keys
from squall.coordination.signals.handler_loop import Delivery
from squall.coordination.stores.interface import Remove, Write
from squall.coordination.stores.kinds import KINDS, RESERVED_KINDS, WORK_KINDS
from tests.unit.coordination.lab.world import Lab, play

ROOT = Path(__file__).parents[4]


def writes(name: str) -> list[Write]:
    return [
        Put(name, b"x", expect=ANY, ttl_s=60.0),
        Delete(name, ANY),
        Append(name, "id", b"x", ttl_s=60.0),
        Remove(name, "1.1"),
    ]


def test_every_way_to_write_refuses_every_kind_of_the_library() -> None:
    async def script(lab: Lab) -> None:
        lab.start("a")
        await lab.led()
        member = lab.members["a"]
        before = await lab.store.get(keys.LEADER, keys.META, keys.heartbeat("a"))

        async def refused(kind: str) -> None:
            term = member.term
            assert term is not None
            name = kind if kind in ("leader", "meta") else f"{kind}/a"
            for write in writes(name):
                for call in (term.write, member.store.write):
                    with pytest.raises(ConfigurationError, match="belongs to the library"):
                        await call(write)
                with pytest.raises(ConfigurationError, match="belongs to the library"):
                    Delivery(None).also(write)  # type: ignore[arg-type]
            with pytest.raises(ConfigurationError, match="belongs to the library"):
                await member.store.take(name, "me", lease_s=1.0)
            with pytest.raises(ConfigurationError, match="belongs to the library"):
                Ttl().register(name, expires_after=1.0)

        for kind in RESERVED_KINDS:
            await lab.run_on("a", refused(kind))
        after = await lab.store.get(keys.LEADER, keys.META, keys.heartbeat("a"))
        assert [each and each.epoch for each in before] == [each and each.epoch for each in after]
        assert member.is_coordinator

    play(script)


def test_no_public_name_leads_around_the_protection() -> None:
    async def script(lab: Lab) -> None:
        lab.start("a")
        await lab.led()
        member: Any = lab.members["a"]
        for name in ("inner", "urgent"):
            with pytest.raises(ConfigurationError, match="inner is refused"):
                getattr(member.store, name)
        assert [name for name in vars(Term) if name.startswith("write")] == ["write"]

    play(script)


def test_the_application_writes_its_own_and_may_check_ours() -> None:
    async def script(lab: Lab) -> None:
        lab.start("a")
        await lab.led()
        member = lab.members["a"]

        async def write(member: Coordinator) -> None:
            term, alive = member.term, member.alive_check
            assert term is not None and alive is not None
            await term.write(alive, Put("report/a", b"1", expect=ANY, ttl_s=60.0))
            await member.store.write(alive, Put("leader-notes", b"1", expect=ANY, ttl_s=60.0))
            await member.store.write(Delete("archive/report/a", ANY))

        await lab.run_on("a", write(member))
        assert all(await lab.store.get("report/a", "leader-notes"))

    play(script)


def test_the_table_has_every_kind_that_the_library_writes() -> None:
    async def script(lab: Lab) -> None:
        lab.start("a")
        await lab.led()
        await asyncio.sleep(1.0)
        assert set(await lab.store.count()) <= set(KINDS)

    play(script)
    source = ROOT / "src/squall/coordination"
    text = "\n".join(path.read_text(encoding="utf-8") for path in source.rglob("*.py"))
    named = set(re.findall(r'make_key\("([a-z]+)"', text))
    assert named <= set(KINDS), named - set(KINDS)


def test_the_alert_leaves_out_the_kinds_that_follow_the_work() -> None:
    rules = (ROOT / "deploy/coordination/rules.yml").read_text(encoding="utf-8")
    found = re.search(r'coordination_keys\{kind!~"([a-z|]+)"\}', rules)
    assert found is not None
    assert set(found[1].split("|")) == WORK_KINDS
