"""No secret and no signature in logs, events, metrics, errors or the text of an object."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from lab.scenarios.coordination.store import WorldClock
from squall.coordination import events
from squall.coordination.errors import ConfigurationError
from squall.coordination.options import Options
from squall.coordination.records import keys
from squall.coordination.records.schemas import Codec, LeaseRecord, Signal
from squall.coordination.secrets.sources import check_secret
from squall.coordination.stores.interface import Append
from squall.runtime.log import Log, MemorySink, text_line
from tests.unit.coordination.lab.groups import group
from tests.unit.coordination.lab.world import SECRET, Lab, play

NEXT = "b7e15162" * 8


def test_nothing_that_proves_something_is_shown() -> None:
    async def script(lab: Lab) -> None:
        sink = MemorySink()
        log = Log(sink, WorldClock(lab.world, 1.0), level="debug")
        heard, leader = await group(lab, "a", "b", "c", log=log, debug=True)
        first = lab.members[leader]
        other = next(each for each in lab.members.values() if each is not first)
        got: list[Signal] = []

        def handle(delivery: object) -> None:
            got.append(delivery.signal)  # type: ignore[attr-defined]
            raise ValueError(f"cannot take {delivery.signal}")  # type: ignore[attr-defined]

        other.on_signal("job", handle)
        await first.send_signal(other.member_id, "job", payload={"n": 1})
        (item,) = await lab.store.read(keys.inbox(other.member_id))
        signed = msgspec.json.decode(item.value)
        forged = msgspec.json.encode({**signed, "payload": "forged", "signal_id": "f"})
        await lab.store.write(Append(keys.inbox(other.member_id), "f", forged, ttl_s=60.0))
        for member in lab.members.values():
            member.reload_secrets([SECRET, NEXT])
        lab.world.kill(next(name for name in lab.members if lab.members[name] is first))
        await lab.led(within_s=20.0, but=leader)
        await asyncio.sleep(20.0)
        assert got and heard.of(events.SignalRejected) and heard.of(events.ErrorEvent)
        (record,) = await lab.store.get(keys.LEADER)
        assert record is not None
        lease = Codec(None).read(LeaseRecord, record.value, signed=False)
        assert lease is not None and lease.signature and lease.token
        told = [
            *(text_line(each) for each in sink.records),
            *(repr(each) for each in heard.all),
            *(repr(each.error) for each in heard.of(events.ErrorEvent)),
            *(each.metrics_text() for each in lab.members.values() if each is not first),
            *(repr(each.options) for each in lab.members.values()),
            *map(repr, (*got, lease, other, other.parts.codec.keyring)),
        ]
        text = "\n".join(told)
        assert "heartbeat_cycle" in text and "cannot take" in text
        for hidden in (SECRET, NEXT, signed["signature"], lease.signature, lease.token):
            assert hidden not in text

    play(script)


@pytest.mark.parametrize("weak", ["tiny-secret", "changeme" * 8, "ab" * 40])
def test_a_refusal_does_not_show_what_it_refuses(weak: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        check_secret(weak, "production")
    assert weak not in str(refused.value)
    assert weak not in repr(Options(secret=weak))
