"""The signing secret of five member processes changes while they exchange signals: no signal is
refused or lost, and each step is refused while it is too early. Used by tests and, at full size,
by the acceptance.
"""

from __future__ import annotations

import asyncio
import json
import random
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from squall.coordination.errors import ConfigurationError
from squall.coordination.operations import secret_rotation as rotation
from squall.coordination.operations.secret_rotation import SecretRotation, rotation_of
from squall.coordination.records import keys
from squall.coordination.records.schemas import Codec, Signal
from squall.coordination.secrets.signing import Key, Keyring
from squall.coordination.secrets.sources import generate_secret
from squall.coordination.stores.guarded_store import GuardedStore
from squall.coordination.stores.interface import Append
from squall.coordination.stores.open import make_store
from squall.runtime.real.runtime import RealClock
from tests.lab.programs import ROOT, program
from tests.services.coordination.lab.processes import Lab

NAMES = ("staging", "default")
DAY_S = 86_400.0


class Later(GuardedStore):
    """A store whose clock is more than a day ahead."""

    async def now_ms(self) -> int:
        return await super().now_ms() + round((DAY_S + 3600.0) * 1000.0)


class RotationLab(Lab):
    """`per_s` signals of all members together; `look_s` is how often the coordinator notes what
    it signs with, its own pace without it."""

    def __init__(
        self,
        url: str,
        prefix: str,
        folder: Path,
        scale: float,
        *,
        members: int,
        per_s: float,
        look_s: float | None,
    ) -> None:
        super().__init__(url, prefix, folder, [f"m{each}" for each in range(members)], scale)
        self.per_s = per_s
        self.look_s = look_s
        self.some = max(4, round(2.0 * per_s))
        """Signals that pass at each step: those of two seconds."""
        self.begins = folder / "begins"
        """When it exists, members send: all are registered by then."""
        self.secret = folder / "secret"
        self.old = generate_secret()
        self.secret.write_text(f"{self.old}\n")
        self.secret.chmod(0o600)

    def start(self, member: str, *, offset: float = 0.0) -> None:
        options = {
            "url": self.url,
            "prefix": self.prefix,
            "member": member,
            "others": ",".join(each for each in self.members if each != member),
            "journal": str(self.folder / f"{member}.jsonl"),
            "scale": str(self.scale),
            "secret": str(self.secret),
            "per_s": str(self.per_s / len(self.members)),
            "look_s": "" if self.look_s is None else str(self.look_s),
            "begins": str(self.begins),
        }
        command = program("tests.services.coordination.programs.talker", json.dumps(options))
        with (self.folder / f"{member}.err").open("ab") as errors:
            self.processes[member] = subprocess.Popen(
                command, stderr=errors, stdout=errors, cwd=ROOT
            )

    def tell(self, members: list[str], number: signal.Signals) -> None:
        for member in members:
            self.processes[member].send_signal(number)

    async def until_true(self, condition: Callable[[], object], what: str, within_s: float) -> None:
        """Without blocking this process, which may serve S3."""
        deadline = time.monotonic() + within_s
        while not condition():
            if time.monotonic() > deadline:
                errors = "".join(path.read_text()[-1500:] for path in self.folder.glob("*.err"))
                raise AssertionError(f"not within {within_s:.0f} s: {what}\n{errors}")
            await asyncio.sleep(0.1)

    async def more_signals(self, count: int) -> None:
        before = len(self.lines("handled"))
        await self.until_true(
            lambda: len(self.lines("handled")) >= before + count,
            f"{count} more signals are handled",
            30.0 * self.scale + 3.0 * count / self.per_s,
        )


async def change_the_secret(lab: RotationLab) -> str:
    inner = make_store(lab.url, RealClock(), random.Random(), prefix=lab.prefix)
    store = GuardedStore(inner, RealClock(), random.Random())
    later = Later(inner, RealClock(), random.Random())
    try:
        for member in lab.members:
            lab.start(member)
        await lab.until_true(
            lambda: len(lab.lines("started")) == len(lab.members),
            "all have started",
            60.0 * lab.scale,
        )
        lab.begins.touch()
        await lab.more_signals(lab.some)
        begun = time.monotonic()
        new = await _accept_both(lab, store)
        await _sign_with(lab, store, new)
        await _promote(lab, store, later, new)
        took_s = time.monotonic() - begun
        sent = await _drain(lab)
        await _refuse_the_old(lab, store)
        rejected = [line["reason"] for line in lab.lines("rejected")]
        assert rejected == ["unknown_key"], rejected
        return f"{sent} signals through all four steps in {took_s:.0f} s, none refused, none lost"
    finally:
        await inner.close()


async def _accept_both(lab: RotationLab, store: GuardedStore) -> str:
    """All but the last accept the new one: it is not signed with, and not promoted."""
    rotation.start(lab.secret, NAMES[0])
    new = Key(lab.secret.read_text().split()[-1], *NAMES).key_id
    last = lab.members[-1]
    lab.tell(lab.members[:-1], signal.SIGHUP)
    await _until(lab, store, lambda found: list(found.lacking.get(new, ())) == [last])
    await lab.more_signals(lab.some)
    found = await rotation_of(store)
    assert found.signing != new
    with pytest.raises(ConfigurationError, match=last):
        rotation.promote(lab.secret, found, *NAMES)
    lab.tell([last], signal.SIGHUP)
    return new


async def _sign_with(lab: RotationLab, store: GuardedStore, new: str) -> None:
    def is_signing(found: SecretRotation) -> bool:
        return found.signing == new and found.signs_for_s > 0.0

    await _until(lab, store, is_signing)
    await lab.more_signals(lab.some)
    with pytest.raises(ConfigurationError, match="h more"):
        rotation.promote(lab.secret, await rotation_of(store), *NAMES)


async def _promote(lab: RotationLab, store: GuardedStore, later: GuardedStore, new: str) -> None:
    # Nothing that the old one signed lies unread by now, as after the day that is left out.
    await lab.more_signals(lab.some)
    rotation.promote(lab.secret, await rotation_of(later), *NAMES)
    for member in lab.members:
        lab.tell([member], signal.SIGHUP)
        await lab.more_signals(lab.some // 4)
    await _until(lab, store, lambda found: list(found.accepted) == [new])
    await lab.more_signals(lab.some)


async def _drain(lab: RotationLab) -> int:
    """All that was sent is handled."""
    lab.tell(lab.members, signal.SIGUSR1)
    await lab.until_true(
        lambda: len(lab.lines("quiet")) == len(lab.members), "all are quiet", 30.0 * lab.scale
    )

    def left() -> set[str]:
        sent = {line["text"] for line in lab.lines("sent")}
        return sent - {line["text"] for line in lab.lines("handled")}

    await lab.until_true(lambda: not left(), "all that was sent is handled", 60.0 * lab.scale)
    assert lab.lines("not_sent") == []
    return len(lab.lines("sent"))


async def _refuse_the_old(lab: RotationLab, store: GuardedStore) -> None:
    now = await store.now_ms() / 1000.0
    forged = Signal(
        signal_id="0" * 24,
        sender_id=lab.members[1],
        sender_boot=1,
        receiver_id=lab.members[0],
        type="note",
        timestamp=now,
        expires_at=now + 600.0,
    )
    value = Codec(Keyring.of([lab.old], *NAMES)).encode(forged)
    await store.write(Append(keys.inbox(lab.members[0]), "late", value, ttl_s=600.0))
    await lab.until_true(lambda: lab.lines("rejected"), "the old one is refused", 20.0 * lab.scale)


async def _until(
    lab: RotationLab, store: GuardedStore, condition: Callable[[SecretRotation], bool]
) -> None:
    deadline = time.monotonic() + 60.0 * lab.scale + 2.0 * (lab.look_s or 300.0)
    while not condition(found := await rotation_of(store)):
        assert time.monotonic() < deadline, found
        await asyncio.sleep(0.3)
