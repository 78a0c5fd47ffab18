"""Documents of MongoDB, encoded once as BSON before the clock starts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

import bson
from bson.errors import InvalidDocument
from bson.raw_bson import RawBSONDocument

from squall.api.arguments import Prepared
from squall.api.errors import CallError


class PreparedBSON(Prepared):
    """A document, or a list of them. Commands carry `encoded` in its place."""

    __slots__ = ("encoded",)

    def __init__(self, value: Any, encoded: Any) -> None:
        super().__init__(value)
        self.encoded = encoded


def document_of(value: Any) -> PreparedBSON:
    """Prepares a document. Raises a `CallError` for any other value."""
    if isinstance(value, PreparedBSON):
        return value
    if isinstance(value, Mapping):
        return PreparedBSON(value, _encoded(value))
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        return PreparedBSON(value, [_encoded(each) for each in cast("Sequence[Any]", value)])
    raise CallError(f"a document must be a dict or a list of dicts, not {type(value).__name__}")


def plain(document: Any) -> Any:
    """The part of a command that stands for a prepared or plain document."""
    return document.encoded if document.__class__ is PreparedBSON else document


def _encoded(value: Any) -> RawBSONDocument:
    if not isinstance(value, Mapping):
        raise CallError(f"a document must be a dict, not {type(value).__name__}")
    try:
        return RawBSONDocument(bson.encode(cast("Mapping[str, Any]", value)))
    except (InvalidDocument, OverflowError, TypeError, ValueError) as error:
        # It names the field, and the type that has no place in BSON.
        raise CallError(f"the document cannot be sent as BSON: {error}") from None
