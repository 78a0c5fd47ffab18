"""An intruder that can write to the store but has no secret.

It alters signals that are not read yet, repeats delivered ones, and sends forged ones. None of them
may have an effect.
"""

from __future__ import annotations

import asyncio
from random import Random
from typing import Any

import msgspec

from lab.scenarios.coordination.store import StoreMachine
from lab.sim.world import World
from squall.coordination.records import keys
from squall.coordination.stores.interface import Append, Item, Remove

TTL_S = 3600.0
# How often an unread signal is replaced by an altered one.
ON_THE_WAY = 0.2


async def intrude(world: World, machine: StoreMachine, members: list[str]) -> None:
    draw = world.random("intruder")
    copies: list[tuple[str, Item]] = []
    number = 0
    while True:
        await asyncio.sleep(draw.uniform(0.05, 0.6))
        stream = keys.inbox(draw.choice(members))
        items = await machine.memory.read(stream)
        copies += [(stream, item) for item in items[:2]]
        del copies[:-50]
        if not copies:
            continue
        number += 1
        if items and draw.random() < ON_THE_WAY:
            # The sender gets no acknowledgment and sends it again.
            target, item = stream, draw.choice(items)
            await machine.memory.write(Remove(target, item.cursor))
            value = altered(item, draw)
        else:
            target, item = draw.choice(copies)
            value = draw.choice((altered, item_value))(item, draw)
        await machine.memory.write(Append(target, f"intruder-{number}", value, ttl_s=TTL_S))
        world.count("forged or repeated signals")


def item_value(item: Item, draw: Random) -> bytes:
    return item.value


def altered(item: Item, draw: Random) -> bytes:
    fields: dict[str, Any] = msgspec.json.decode(item.value, type=dict[str, Any])
    fields["payload"] = {"text": f"forged {draw.random():.6f}"}
    if draw.random() < 0.3:
        fields["signal_id"] = draw.randbytes(12).hex()
    return msgspec.json.encode(fields)
