"""Turns what an author sends into bytes, and names calls for messages."""

from __future__ import annotations

from typing import Any

import msgspec

from squall.api.arguments import Prepared
from squall.clients.calls.address import PreparedAddress
from squall.clients.http.body import PreparedBody, PreparedFile, data_of

# Characters of a statement or command that messages show.
_SHOWN_CHARACTERS = 80


def payload_of(value: Any) -> bytes:
    """The bytes of a `Data` argument or a plain value: text as UTF-8, a dict or list as JSON."""
    if value.__class__ is bytes:
        return value
    if value.__class__ is str:
        return value.encode()
    if isinstance(value, PreparedBody | PreparedFile):
        return value.content
    if isinstance(value, Prepared):
        value = value.value
    return data_of(value).content


class SentData(msgspec.Struct, eq=False, gc=False):
    """The source of a response of raw bytes: the verb, and what was sent."""

    to: PreparedAddress
    verb: str
    data: bytes

    @property
    def address(self) -> str:
        return self.to.shown

    @property
    def operation(self) -> str:
        start = self.data[: 4 * _SHOWN_CHARACTERS].decode("utf-8", "backslashreplace")
        return f"{self.verb} {shown(start)}" if start else self.verb


def shown(text: str) -> str:
    """A statement as messages show it: in one line, and short."""
    line = " ".join(text[: 4 * _SHOWN_CHARACTERS].split())
    return line if len(line) <= _SHOWN_CHARACTERS else line[: _SHOWN_CHARACTERS - 3] + "..."
