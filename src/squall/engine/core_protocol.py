"""Messages between the parent and its core processes on one machine.

Length-prefixed MessagePack over a socket pair; only plain data crosses. The parent sends
Load, then Prepare, Go and Stop for shares; a core answers each and reports every second. A run on
one machine addresses all shares of a phase at once. A worker addresses each by itself: they come
and go one by one, and each has its own lease.
A core whose parent is gone ends at once: load without an owner must not run.
"""

from __future__ import annotations

import asyncio
import struct
from typing import Any, TypeAlias, cast

import msgspec

from squall.api.errors import SquallError
from squall.engine.run_options import RunOptions
from squall.stats.manifest import FileManifest, Profile, WorkflowPart
from squall.stats.reports import ErrorSample, ExchangeReport, HealthReport, WindowReport

FRAME_MAX = 256 * 1024 * 1024
_LENGTH = struct.Struct("<I")


ShareName: TypeAlias = tuple[str, int]
"""Workflow and number of a share: unique in a core process."""


class ShareSpec(msgspec.Struct, kw_only=True):
    """The part of a workflow that one process runs: share `share` of `shares`."""

    workflow: str
    share: int
    shares: int
    profile: Profile
    """Of the whole workflow, over all shares."""
    users: int
    """Users of this share that are ready at the start."""
    users_max: int
    first_id: int = 1
    id_step: int = 1
    """User i of this share is `first_id + i * id_step`: unique over the whole test."""
    iterations: int = 0
    """Of this share, for the `iterations` model."""
    seed: int = 0
    values: dict[str, bytes] = {}
    """The context from workflows it depends on: name -> encoded value."""
    received: dict[str, bytes] = {}
    """`@state` values for the Use hooks: "hook.argument" -> encoded value."""
    exports: list[str] = []
    """Names that other workflows need from this one. It fails if one cannot be encoded."""
    attempt: int = 1
    iterations_done: int = 0
    """Made by earlier attempts at this share: tickets, rows and ids continue after them."""
    refill: bool = False
    """Earlier attempts, or the losses of the result, count what was planned until it joins. Without
    them a share that begins late plans from the start: its late starts are made or dropped."""
    part: WorkflowPart | None = None
    """Set if other datacenters run the rest of the workflow. `profile` is this datacenter's."""

    @property
    def name(self) -> ShareName:
        return self.workflow, self.share


class Load(msgspec.Struct, tag="load", kw_only=True):
    path: str
    """Absolute path of the author's file, empty with `options.url`."""
    options: RunOptions
    search_path: list[str] = []
    """The parent's `sys.path`, for imports of the author's file."""
    process: int = 0
    """The core's number in the whole run; 0 keeps the one it was started with."""
    requirements: list[str] = []
    """Third-party modules that must be there before anything is imported."""
    python: str = ""
    """The x.y that the file must run with; empty: any."""
    imports: bool = False
    """Asks for the modules of the file in `Loaded`, to make a bundle."""


class Prepare(msgspec.Struct, tag="prepare"):
    shares: list[ShareSpec]
    counters: list[str] = []
    """The absolute path of the counter file of each share, in the order of `shares`; empty for a
    run whose counters need not survive."""
    leases: list[int] = []
    """The slot of each share's lease in the memory of the core, in the same order; empty for a run
    without leases."""


class Go(msgspec.Struct, tag="go"):
    at: float
    """`time.perf_counter` of this machine: the same clock in all its processes."""
    run_began: float
    joined_s: float = 0.0
    """Above zero: how long the workflow has already run."""
    share: ShareName | None = None
    """None: all that are prepared and have not begun."""


class Adjust(msgspec.Struct, tag="adjust", frozen=True, kw_only=True):
    """The load of a workflow from now on, over all its shares; None leaves it to the plan."""

    paused: bool = False
    rate_per_s: float | None = None
    vus: int | None = None


class AdjustShare(msgspec.Struct, tag="adjust_share"):
    share: ShareName
    load: Adjust


class Stop(msgspec.Struct, tag="stop"):
    now: bool
    """False: end gracefully. True: cancel what runs."""
    share: ShareName | None = None
    """None: all."""


class Abandon(msgspec.Struct, tag="abandon"):
    """Ends a share that did not end after a Stop, whatever its users do."""

    share: ShareName
    why: str


class Exit(msgspec.Struct, tag="exit"):
    pass


class Loaded(msgspec.Struct, tag="loaded", array_like=True):
    manifest: FileManifest
    descriptors: int
    modules: list[tuple[str, str]] = []
    """Local modules that the file imports: (path below its folder, absolute path)."""
    requirements: list[str] = []
    """Third-party modules that the file and its modules import, by their first name."""


class CoreRefused(msgspec.Struct, tag="refused", array_like=True):
    """The core cannot run the file, or only `workflow` if that is named: a user's mistake."""

    text: str
    exit_code: int
    workflow: str = ""
    share: int = 0


class Ready(msgspec.Struct, tag="ready", array_like=True):
    """All shares of a Prepare that were not refused can start: these."""

    shares: list[ShareName] = []


class Ended(msgspec.Struct, tag="ended", array_like=True, kw_only=True):
    """A share is over; its last window report was sent before this."""

    workflow: str
    share: int
    elapsed_s: float
    error: str = ""
    """Why the workflow counts as failed; empty when it does not."""
    values: dict[str, bytes] = {}
    provided: dict[str, bytes] = {}
    notes: list[tuple[str, str]] = []
    """(verdict state, reason) in addition to what the reports show."""
    warnings: list[str] = []
    cut: str = ""
    """Why it ended before its time, if the core itself cut it."""


class OutputLine(msgspec.Struct, tag="line", array_like=True):
    """What an author's `print` or logger wrote."""

    prefix: str
    text: str


class Crashed(msgspec.Struct, tag="crashed", array_like=True):
    """A bug in Squall ended the core process."""

    traceback: str


ToCore = Load | Prepare | Go | AdjustShare | Stop | Abandon | Exit
ToParent = (
    Loaded
    | CoreRefused
    | Ready
    | Ended
    | OutputLine
    | Crashed
    | WindowReport
    | HealthReport
    | ErrorSample
    | ExchangeReport
)

_encode = msgspec.msgpack.Encoder().encode
_to_core = msgspec.msgpack.Decoder(ToCore)
_to_parent = msgspec.msgpack.Decoder(ToParent)


def frame(message: ToCore | ToParent) -> bytes:
    try:
        body = _encode(message)
    except UnicodeEncodeError:
        body = _encode(_encodable(msgspec.to_builtins(message, builtin_types=(bytes,))))
    if len(body) > FRAME_MAX:
        raise SquallError(f"a message of {len(body)} bytes exceeds the limit of {FRAME_MAX}")
    return _LENGTH.pack(len(body)) + body


def _encodable(value: Any) -> Any:
    """Replaces lone surrogates, which no encoding can carry. An author's text may have them
    from a file name or a cut emoji."""
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    if isinstance(value, dict):
        items = cast("dict[Any, Any]", value).items()
        return {_encodable(key): _encodable(item) for key, item in items}
    if isinstance(value, (list, tuple)):
        return [_encodable(item) for item in cast("list[Any]", value)]
    return value


async def receive_in_core(reader: asyncio.StreamReader) -> ToCore | None:
    body = await _body(reader)
    return None if body is None else _to_core.decode(body)


async def receive_in_parent(reader: asyncio.StreamReader) -> ToParent | None:
    body = await _body(reader)
    return None if body is None else _to_parent.decode(body)


async def _body(reader: asyncio.StreamReader) -> bytes | None:
    """Returns the content of the next frame, None if the other side is gone."""
    try:
        (length,) = _LENGTH.unpack(await reader.readexactly(_LENGTH.size))
        if length > FRAME_MAX:
            raise SquallError(f"a frame of {length} bytes exceeds the limit of {FRAME_MAX}")
        return await reader.readexactly(length)
    except (asyncio.IncompleteReadError, ConnectionError):
        return None


def encode_value(value: Any) -> bytes:
    """Encodes a value for another workflow. Raises TypeError if it is not plain data."""
    return _encode(value)


def decode_value(data: bytes) -> Any:
    return msgspec.msgpack.decode(data)
