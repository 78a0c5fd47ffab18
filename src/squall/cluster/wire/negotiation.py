"""What both sides of a link must agree on: protocol version, features, group settings. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum

from squall.api.errors import ConfigError


class LinkKind(IntEnum):
    CONTROL = 0
    BULK = 1


def protocol(major: int, minor: int) -> int:
    return major << 8 | minor


def protocol_text(version: int) -> str:
    return f"{version >> 8}.{version & 0xFF}"


PROTOCOL_MIN = protocol(1, 0)
"""The oldest version that is safe to talk to: fencing and quorum formats are equal since."""
PROTOCOL_MAX = protocol(1, 0)


@dataclass(frozen=True, slots=True)
class GroupSettings:
    """A member's view of its group. `digest` covers the group's id and its first command, and
    is empty before the member knows them; `timers` is the digest of the timers."""

    group: str = ""
    epoch: int = 0
    digest: bytes = b""
    timers: bytes = b""


@dataclass(frozen=True, slots=True)
class Profile:
    """What a process announces about itself to every peer."""

    protocol_min: int = PROTOCOL_MIN
    protocol_max: int = PROTOCOL_MAX
    features: frozenset[str] = frozenset()
    settings: GroupSettings = field(default_factory=GroupSettings)
    version: str = ""
    """The version of the software; for people only."""

    def __post_init__(self) -> None:
        if self.protocol_min > self.protocol_max:
            raise ConfigError(
                f"protocol {protocol_text(self.protocol_min)} is the least accepted, above the "
                f"newest that is spoken, {protocol_text(self.protocol_max)}"
            )


def common_protocol(one_min: int, one_max: int, other_min: int, other_max: int) -> int | None:
    """The newest version that both speak; None across majors or below either's minimum."""
    spoken = min(one_max, other_max)
    if one_max >> 8 != other_max >> 8 or spoken < max(one_min, other_min):
        return None
    return spoken


def settings_match(mine: GroupSettings, theirs: GroupSettings) -> bool:
    """Only members of one group and epoch must agree: a member of another epoch catches up.
    Timers must agree in every epoch, or leases would not be safe."""
    if not mine.group or mine.group != theirs.group:
        return True
    if mine.timers != theirs.timers:
        return False
    if mine.epoch != theirs.epoch or not mine.digest or not theirs.digest:
        return True
    return mine.digest == theirs.digest
