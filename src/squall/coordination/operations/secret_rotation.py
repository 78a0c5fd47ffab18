"""Shows the state of a secret rotation, and performs its steps for secrets in a file.

    start     adds a second secret to the file: members accept both and sign with the old one
    (agreed)  every live member accepts the new one: the leader makes all sign with it
    promote   a day later, removes the old one: every signal that it signed has expired
    abort     removes the new one again, if no member signs with it yet

Secrets in other sources are changed by the tools of that source; `status` is the same for all. No
step shows a secret, or removes one that a live signal may be signed with.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from squall.coordination.errors import ConfigurationError
from squall.coordination.members.housekeeping import NamespaceMeta, read_meta
from squall.coordination.operations.inspect import Member, list_members
from squall.coordination.records import keys
from squall.coordination.records.schemas import Codec, LeaseRecord
from squall.coordination.secrets.signing import Key
from squall.coordination.secrets.sources import check_secret, generate_secret
from squall.coordination.stores.guarded_store import GuardedStore


class SecretRotation(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a rotation. `signing` is "" before the first agreement: each member then signs
    with its first key."""

    signing: str
    signs_for_s: float
    """How long the leader has signed with it."""
    accepted: Mapping[str, int]
    """How many live members accept each key."""
    seen_s: Mapping[str, float]
    """How long ago each key was first seen in this store."""
    live: int
    lacking: Mapping[str, Sequence[str]]
    """The live members that do not accept each key."""


async def rotation_of(store: GuardedStore) -> SecretRotation:
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
    return SecretRotation(
        signing=signing,
        signs_for_s=_signs_for_s(meta, signing, now_ms),
        accepted={key: sum(key in member.key_ids for member in live) for key in names},
        seen_s={key: max(0.0, (now_ms - seen_ms.get(key, now_ms)) / 1000.0) for key in names},
        live=len(live),
        lacking={key: _lacking(live, key) for key in names},
    )


def start(path: Path, environment: str) -> str:
    """Adds a new secret to the file; returns what was done."""
    values = _secrets_in(path)
    if len(values) > 1:
        raise ConfigurationError(f"{path} holds {len(values)} secrets: a rotation is under way")
    new = generate_secret()
    check_secret(new, environment)
    _write(path, [*values, new])
    return f"{path} has a second secret; members read it within 5 min"


def promote(
    path: Path, found: SecretRotation, environment: str, namespace: str, *, force: bool = False
) -> str:
    """Removes the old secret from the file. Refused while a member or a signal needs it."""
    values = _secrets_in(path)
    if len(values) < 2:
        raise ConfigurationError(f"{path} holds one secret: there is nothing to promote")
    new = Key(values[-1], environment, namespace).key_id
    if not force:
        _check_promotion(found, new)
    _write(path, values[-1:])
    return f"{path} holds the new secret only; members read it within 5 min"


def abort(path: Path, found: SecretRotation, environment: str, namespace: str) -> str:
    values = _secrets_in(path)
    if len(values) < 2:
        raise ConfigurationError(f"{path} holds one secret: there is nothing to abort")
    new = Key(values[-1], environment, namespace).key_id
    if found.signing == new:
        raise ConfigurationError("members already sign with the new secret: promote it instead")
    _write(path, values[:-1])
    return f"{path} holds the old secret only"


def _check_promotion(found: SecretRotation, new: str) -> None:
    lacking = found.lacking.get(new)
    if lacking is None:
        raise ConfigurationError("no live member accepts the new secret yet: wait, or use --force")
    if lacking:
        names = ", ".join(lacking[:3])
        raise ConfigurationError(f"not accepted yet by {names}: wait, or use --force")
    if found.signing != new:
        raise ConfigurationError("the leader does not sign with the new secret yet: wait")
    if found.signs_for_s < keys.SIGNAL_LIFE_S:
        left_h = (keys.SIGNAL_LIFE_S - found.signs_for_s) / 3600.0
        raise ConfigurationError(
            f"signals with the old secret may live for {left_h:.1f} h more: wait, or use --force"
        )


def _signs_for_s(meta: NamespaceMeta | None, key: str, now_ms: int) -> float:
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
    """Replaces the file atomically; it is never readable by other users on the way."""
    new_path = path.with_name(f".{path.name}.new")
    handle = os.open(new_path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        os.write(handle, "".join(f"{value}\n" for value in values).encode())
        os.fsync(handle)
    finally:
        os.close(handle)
    new_path.replace(path)
