"""The contexts that workflows hand over to later ones, by the same rules as on one machine.

A context is collected once, when its workflow is over, and committed before the next layer
starts. If several shares give a name, the lowest-numbered one wins; if several attempts at a
share do, the earliest. Values are opaque bytes here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from squall.cluster.protocol.messages import SpecValues
from squall.engine.plan.received_values import collected, received_by
from squall.stats.attempt_record import RecordEnd
from squall.stats.manifest import FileManifest, WorkflowManifest


class Context(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    values: dict[str, bytes] = {}
    """For workflows that depend on it."""
    provided: dict[str, bytes] = {}
    """Given by its `@state` hooks."""
    more: dict[str, list[bytes]] = {}
    """Given by the same hooks in other processes, for arguments that collect all values."""


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Context)


def encode_context(context: Context) -> bytes:
    return _encode(context)


def decode_context(data: bytes) -> Context:
    return _decode.decode(data) if data else Context()


def collect(ends: Iterable[RecordEnd]) -> Context:
    """`ends` are ordered by share and attempt."""
    parts = list(ends)
    values: dict[str, bytes] = {}
    for end in parts:
        values = {**end.values, **values}
    found = collected(end.provided for end in parts)
    return Context(
        values=values,
        provided={name: several[0] for name, several in found.items()},
        more={name: several[1:] for name, several in found.items() if len(several) > 1},
    )


def handed_over(
    manifest: FileManifest, workflow: WorkflowManifest, contexts: Mapping[str, Context]
) -> SpecValues:
    """The values for the context of a workflow, and for its `Use` hooks as "hook.argument".
    `contexts` holds the context of every workflow that is over."""
    values, received = received_by(
        manifest,
        workflow,
        {name: context.values for name, context in contexts.items()},
        {name: _provided(context) for name, context in contexts.items()},
    )
    return SpecValues(values=values, received=received)


def _provided(context: Context) -> dict[str, list[bytes]]:
    return {name: [first, *context.more.get(name, ())] for name, first in context.provided.items()}
