"""Somebody who can write to the store and has no secret.

It alters the payload of signals on their way, repeats signals that were delivered, and
sends ones of its own making. Nothing of it may have an effect.
"""

from __future__ import annotations

import asyncio
from random import Random
from typing import Any

import msgspec

from squall.coordination import keys
from squall.coordination.stores.interface import Append, Item, Remove
from squall.scenarios.coordination_store import StoreMachine
from squall.sim.world import World

TTL_S = 3600.0
ON_THE_WAY = 0.2
"""So often a signal that nobody has taken yet is replaced by an altered one."""


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
            # Its sender gets no acknowledgment for it and sends it again.
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
