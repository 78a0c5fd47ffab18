"""What a manager tells a worker about membership: whether it takes part, how often it probes, and
where it finds the managers.
"""
from __future__ import annotations

from collections.abc import Sequence
from typing import Literal
from zlib import crc32

import msgspec

from squall.settings.shared_sections import MembershipSettings

SEEDS_MAX = 9
"""Managers of a group, at most, with those that are to join."""

NodeRole = Literal["manager", "worker", "gate"]


class MembershipSeed(msgspec.Struct, frozen=True, array_like=True):
    """A member to begin with: its boot, and where it receives datagrams."""

    node: str
    boot: str
    role: NodeRole
    host: str
    port: int


class MembershipOrder(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    version: int
    """Another content has another version; never 0."""
    is_on: bool = False
    probe_interval_s: float = 1.0
    probe_timeout_s: float = 0.5
    seeds: tuple[MembershipSeed, ...] = ()


def order_of(
    settings: MembershipSettings, nodes: int, seeds: Sequence[MembershipSeed]
) -> MembershipOrder:
    """The order for a datacenter with so many managers and workers."""
    if nodes > settings.max_nodes:
        return MembershipOrder(version=1)
    first = tuple(sorted(seeds, key=lambda seed: seed.node)[:SEEDS_MAX])
    content = (settings.probe_interval_s, settings.probe_timeout_s, first)
    return MembershipOrder(
        version=crc32(msgspec.msgpack.encode(content)) | 2,
        is_on=True,
        probe_interval_s=settings.probe_interval_s,
        probe_timeout_s=settings.probe_timeout_s,
        seeds=first,
    )
