"""The state machine of the group scenario: keys, one leased share, references to blobs.

It is deterministic and total: it rejects a bad command with a result (R3). Clients number their
commands, so a repeated command has no second effect.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec

from squall.cluster.ledger.interface import Digest, Entry

REJECTED = b"rejected"
LEASES_MS = (800, 2000)
"""Range of the lease lengths that the primary sets during a run."""


class Write(msgspec.Struct, frozen=True, tag="w"):
    """A client's numbered write to a key."""

    client: str
    seq: int
    key: str
    value: str
    expected: str | None = None
    """If given, the command is a compare-and-set."""
    blob: str = ""


class Dispatch(msgspec.Struct, frozen=True, tag="d"):
    """Gives the share to a worker's boot, as a new attempt."""

    attempt: int
    worker: str
    boot: str


class Lost(msgspec.Struct, frozen=True, tag="l"):
    """Declares the attempt lost."""

    attempt: int


class SetLease(msgspec.Struct, frozen=True, tag="s"):
    """Changes the lease length."""

    lease_ms: int


Command = Write | Dispatch | Lost | SetLease


class Share(msgspec.Struct, frozen=True):
    """The one leased share: its present attempt and the lease lengths."""

    attempt: int = 0
    worker: str = ""
    boot: str = ""
    lost: bool = True
    lease_ms: int = LEASES_MS[0]
    longest_ms: int = LEASES_MS[0]


class MachineState(msgspec.Struct):
    """The whole state, as a checkpoint stores it."""

    keys: dict[str, str] = {}
    last: dict[str, tuple[int, str]] = {}
    blobs: list[str] = []
    share: Share = Share()


_decoder = msgspec.msgpack.Decoder(Command)
BLOBS_MAX = 4


def blob_of(body: bytes) -> str:
    """The blob that a command names; "" if it names none."""
    try:
        command = _decoder.decode(body)
    except msgspec.DecodeError:
        return ""
    return command.blob if isinstance(command, Write) else ""


class Captured:
    """A snapshot of the state for a checkpoint."""

    def __init__(self, state: MachineState) -> None:
        self._content = msgspec.msgpack.encode(state)

    def slices(self) -> Iterator[bytes]:
        for start in range(0, len(self._content), 4096):
            yield self._content[start : start + 4096]


class Machine:
    """Applies commands to keys, the share and blob references."""

    def __init__(self, version: int, mutant: str | None) -> None:
        self.version = version
        self.state = MachineState()
        self._mutant = mutant
        # (client, number, op) of commands that had an effect; the checks empty this list.
        self.executed: list[tuple[str, int, int]] = []

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
                share = self.state.share
                if share.attempt == command.attempt and not share.lost:
                    self.state.share = msgspec.structs.replace(share, lost=True)
                    return b"lost"
                return REJECTED
            case SetLease():
                share = self.state.share
                longest = max(share.longest_ms, command.lease_ms)
                self.state.share = msgspec.structs.replace(
                    share, lease_ms=command.lease_ms, longest_ms=longest
                )
                return b"set"
            case _:
                return REJECTED

    def _write(self, command: Write, op: int) -> str:
        state = self.state
        number, answer = state.last.get(command.client, (0, ""))
        if command.seq < number:
            return "!stale"
        if command.seq == number:
            return answer
        present = state.keys.get(command.key, "")
        answer = f"={present}"
        if command.expected is None or command.expected == present:
            state.keys[command.key] = command.value
            answer = f"+{present}"
            if command.blob:
                state.blobs = [*state.blobs, command.blob][-BLOBS_MAX:]
        state.last[command.client] = (command.seq, answer)
        self.executed.append((command.client, command.seq, op))
        return answer

    def _dispatch(self, command: Dispatch) -> bytes:
        share = self.state.share
        if not share.lost or command.attempt != share.attempt + 1:
            return REJECTED
        self.state.share = Share(
            command.attempt, command.worker, command.boot, False, share.lease_ms, share.lease_ms
        )
        return b"dispatched"

    def begin_group(self, group: str, epoch: int) -> None:
        """Nothing here is named after an op number."""

    def references(self) -> list[Digest]:
        return [Digest(blob) for blob in self.state.blobs]

    def capture(self) -> Captured:
        return Captured(self.state)

    def load(self, slices: Iterable[bytes]) -> None:
        self.state = msgspec.msgpack.decode(b"".join(slices), type=MachineState)
        self.executed.clear()
