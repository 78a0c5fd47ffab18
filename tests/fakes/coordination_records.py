"""Records of coordination whose values do not matter to a test, and how a newer version would write
one."""

from __future__ import annotations

from typing import Any

import msgspec

from squall.coordination.records.schemas import Codec, Tombstone


def tombstone(member_id: str, boot: int) -> Tombstone:
    """The tombstone of a member that died long ago and was never cleaned up."""
    return Tombstone(
        member_id=member_id,
        boot=boot,
        death_id=f"{member_id}.{boot}",
        epoch=1,
        died_at=0.0,
        reason="silence",
        consecutive_warnings=3,
    )


def newer(codec: Codec, record: Any, **more: Any) -> bytes:
    """As a version would write it that knows more fields."""
    assert codec.keyring is not None
    fields = msgspec.to_builtins(record) | more
    fields.pop("signature", None)
    return codec.keyring.seal(type(record).__name__, fields)
