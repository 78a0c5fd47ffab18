"""What a manager tells a worker about membership: whether it takes part, how often it probes, where
it finds the managers, and the keys of the datagrams.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal
from zlib import crc32

import msgspec

from squall.runtime.interfaces import Address
from squall.settings.shared_sections import MembershipSettings

SEEDS_MAX = 9
"""Managers of a group, at most, with those that are to join."""

TimerProfile = Literal["lan", "wan", "fast"]


class MembershipOrder(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    version: int
    """Another content has another version; never 0."""
    is_on: bool = False
    profile: TimerProfile = "lan"
    probe_interval_s: float = 1.0
    probe_timeout_s: float = 0.3
    seeds: tuple[Address, ...] = ()
    """Where the managers receive datagrams."""
    keys: tuple[bytes, ...] = ()
    """The membership keys of the group, the sending one first; several while the cluster's secret
    is changed. Empty: a manager of an older version."""

    def __repr__(self) -> str:
        return f"MembershipOrder(version={self.version}, is_on={self.is_on})"


OFF = MembershipOrder(version=1)


def order_of(
    settings: MembershipSettings,
    profile: TimerProfile,
    seeds: Sequence[Address],
    keys: tuple[bytes, ...],
) -> MembershipOrder:
    """The order of a datacenter in which membership is on."""
    order = MembershipOrder(
        version=0,
        is_on=True,
        profile=profile,
        probe_interval_s=settings.probe_interval_s,
        probe_timeout_s=settings.probe_timeout_s,
        seeds=tuple(sorted(seeds)[:SEEDS_MAX]),
        keys=keys,
    )
    return msgspec.structs.replace(order, version=crc32(msgspec.msgpack.encode(order)) | 2)
