"""How far a change of the signing secret is, and its next step for secrets in a file.

    start     the file gets a second secret: all accept both, sign with the old one
    (agreed)  every live member accepts the new one: the coordinator makes all sign with it
    promote   a day later the old one leaves the file; nothing that it signed is alive any more
    abort     the new one leaves the file again, if nobody signs with it yet

Other sources are changed by their own tools; `status` is the same for all. It must never show
a secret, nor take one away that a live signal may be signed with.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from squall.coordination import keys
from squall.coordination.errors import ConfigurationError
from squall.coordination.inspection import Member, list_members
from squall.coordination.records import Codec, LeaseRecord
from squall.coordination.secrets import check_secret, generate_secret
from squall.coordination.signing import Key
from squall.coordination.stores.guard import GuardedStore
from squall.coordination.upkeep import Meta, read_meta


class Rotation(msgspec.Struct, frozen=True, kw_only=True):
    """`signing` is "" while nobody has agreed on a key: each signs with its first one."""

    signing: str
    signs_for_s: float
    """How long a coordinator has signed with it."""
    accepted: Mapping[str, int]
    """How many live members accept each key."""
    seen_s: Mapping[str, float]
    """How long ago each key was first seen in this store."""
    live: int
    lacking: Mapping[str, Sequence[str]]
    """Per key the live members that do not accept it."""


async def rotation_of(store: GuardedStore) -> Rotation:
    lease_record, meta_record = await store.get(keys.LEADER, keys.META)
    lease = (
        None
        if lease_record is None
        else Codec(None).read(LeaseRecord, lease_record.value, signed=False)
    )
    meta = None if meta_record is None else read_meta(meta_record.value)
    live = [member for member in await list_members(store) if member.health != "dead"]
    now_ms = await store.now_ms()
    names = sorted({key for member in live for key in member.key_ids})
    seen_ms = {} if meta is None else dict(meta.keys_seen_ms)
    signing = "" if lease is None else lease.signing_key
    return Rotation(
        signing=signing,
        signs_for_s=_signs_for_s(meta, signing, now_ms),
        accepted={key: sum(key in member.key_ids for member in live) for key in names},
        seen_s={key: max(0.0, (now_ms - seen_ms.get(key, now_ms)) / 1000.0) for key in names},
        live=len(live),
        lacking={key: _lacking(live, key) for key in names},
    )


def start(path: Path, environment: str) -> str:
    """Adds a new secret; what was done."""
    values = _secrets_in(path)
    if len(values) > 1:
        raise ConfigurationError(f"{path} holds {len(values)} secrets: a change is under way")
    new = generate_secret()
    check_secret(new, environment)
    _write(path, [*values, new])
    return f"{path} has a second secret; members read it within 5 min"


def promote(
    path: Path, found: Rotation, environment: str, namespace: str, *, force: bool = False
) -> str:
    """Takes the old secret away. Refused while somebody needs it."""
    values = _secrets_in(path)
    if len(values) < 2:
        raise ConfigurationError(f"{path} holds one secret: there is nothing to promote")
    new = Key(values[-1], environment, namespace).key_id
    if not force:
        _check_promotion(found, new)
    _write(path, values[-1:])
    return f"{path} holds the new secret only; members read it within 5 min"


def abort(path: Path, found: Rotation, environment: str, namespace: str) -> str:
    values = _secrets_in(path)
    if len(values) < 2:
        raise ConfigurationError(f"{path} holds one secret: there is nothing to abort")
    new = Key(values[-1], environment, namespace).key_id
    if found.signing == new:
        raise ConfigurationError("all sign with the new secret already: promote it instead")
    _write(path, values[:-1])
    return f"{path} holds the old secret only"


def _check_promotion(found: Rotation, new: str) -> None:
    lacking = found.lacking.get(new)
    if lacking is None:
        raise ConfigurationError("no live member accepts the new secret yet: wait, or --force")
    if lacking:
        names = ", ".join(lacking[:3])
        raise ConfigurationError(f"not accepted yet by {names}: wait, or --force")
    if found.signing != new:
        raise ConfigurationError("the coordinator does not sign with the new secret yet: wait")
    if found.signs_for_s < keys.SIGNAL_LIFE_S:
        left_h = (keys.SIGNAL_LIFE_S - found.signs_for_s) / 3600.0
        raise ConfigurationError(
            f"what the old secret signed may be alive for {left_h:.1f} h more: wait, or --force"
        )


def _signs_for_s(meta: Meta | None, key: str, now_ms: int) -> float:
    since_ms = None if meta is None else meta.signing_since_ms.get(key)
    return 0.0 if since_ms is None else max(0.0, (now_ms - since_ms) / 1000.0)


def _lacking(live: Sequence[Member], key: str) -> list[str]:
    return [member.member_id for member in live if key not in member.key_ids]


def _secrets_in(path: Path) -> list[str]:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{path} cannot be read: {error}") from None
    values = [line.strip() for line in lines if line.strip()]
    if not values:
        raise ConfigurationError(f"{path} holds no secret: make one with coord secret generate")
    return values


def _write(path: Path, values: Sequence[str]) -> None:
    """All or nothing, and never readable by others on the way."""
    beside = path.with_name(f".{path.name}.new")
    handle = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        os.write(handle, "".join(f"{value}\n" for value in values).encode())
        os.fsync(handle)
    finally:
        os.close(handle)
    beside.replace(path)
