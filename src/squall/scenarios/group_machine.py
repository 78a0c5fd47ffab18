"""The state machine of the group scenario: keys, one leased share, blobs that are named.

Deterministic and total: a bad command is rejected with a result. Clients number their
commands, so that a repeat has no second effect.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec

from squall.ledger.interface import Digest, Entry

REJECTED = b"rejected"
LEASES_MS = (800, 2000)
"""Lease lengths that are put in force while it runs."""


class Write(msgspec.Struct, frozen=True, tag="w"):
    client: str
    seq: int
    key: str
    value: str
    expected: str | None = None
    """With it a compare-and-set."""
    blob: str = ""


class Dispatch(msgspec.Struct, frozen=True, tag="d"):
    attempt: int
    worker: str
    boot: str


class Lost(msgspec.Struct, frozen=True, tag="l"):
    attempt: int


class SetLease(msgspec.Struct, frozen=True, tag="s"):
    lease_ms: int


Command = Write | Dispatch | Lost | SetLease


class Share(msgspec.Struct, frozen=True):
    attempt: int = 0
    worker: str = ""
    boot: str = ""
    lost: bool = True
    lease_ms: int = LEASES_MS[0]
    longest_ms: int = LEASES_MS[0]


class Kept(msgspec.Struct):
    keys: dict[str, str] = {}
    last: dict[str, tuple[int, str]] = {}
    blobs: list[str] = []
    share: Share = Share()


_decoder = msgspec.msgpack.Decoder(Command)
BLOBS_MAX = 4


class Captured:
    def __init__(self, kept: Kept) -> None:
        self._content = msgspec.msgpack.encode(kept)

    def slices(self) -> Iterator[bytes]:
        for start in range(0, len(self._content), 4096):
            yield self._content[start : start + 4096]


class Machine:
    def __init__(self, version: int, mutant: str | None) -> None:
        self.version = version
        self.kept = Kept()
        self._mutant = mutant
        self.executed: list[tuple[str, int, int]] = []
        """(client, number, op) of commands that had an effect; the checks take it."""

    def apply(self, entry: Entry) -> bytes:
        try:
            command = _decoder.decode(entry.body)
        except msgspec.DecodeError:
            if self._mutant == "apply_not_total":
                raise
            return REJECTED
        match command:
            case Write():
                return self._write(command, entry.op).encode()
            case Dispatch():
                return self._dispatch(command)
            case Lost():
                share = self.kept.share
                if share.attempt == command.attempt and not share.lost:
                    self.kept.share = msgspec.structs.replace(share, lost=True)
                    return b"lost"
                return REJECTED
            case SetLease():
                share = self.kept.share
                longest = max(share.longest_ms, command.lease_ms)
                self.kept.share = msgspec.structs.replace(
                    share, lease_ms=command.lease_ms, longest_ms=longest
                )
                return b"set"
            case _:
                return REJECTED

    def _write(self, command: Write, op: int) -> str:
        kept = self.kept
        number, answer = kept.last.get(command.client, (0, ""))
        if command.seq < number:
            return "!stale"
        if command.seq == number:
            return answer
        present = kept.keys.get(command.key, "")
        answer = f"={present}"
        if command.expected is None or command.expected == present:
            kept.keys[command.key] = command.value
            answer = f"+{present}"
            if command.blob:
                kept.blobs = [*kept.blobs, command.blob][-BLOBS_MAX:]
        kept.last[command.client] = (command.seq, answer)
        self.executed.append((command.client, command.seq, op))
        return answer

    def _dispatch(self, command: Dispatch) -> bytes:
        share = self.kept.share
        if not share.lost or command.attempt != share.attempt + 1:
            return REJECTED
        self.kept.share = Share(
            command.attempt, command.worker, command.boot, False, share.lease_ms, share.lease_ms
        )
        return b"dispatched"

    def references(self) -> list[Digest]:
        return [Digest(blob) for blob in self.kept.blobs]

    def capture(self) -> Captured:
        return Captured(self.kept)

    def load(self, slices: Iterable[bytes]) -> None:
        self.kept = msgspec.msgpack.decode(b"".join(slices), type=Kept)
        self.executed.clear()
