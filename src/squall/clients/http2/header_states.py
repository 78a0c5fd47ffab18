"""Decodes header blocks (HPACK, RFC 7541), and remembers what each block means.

The meaning of a block depends on the entries that the blocks before it have left in the dynamic
table. So the decoder of a connection is a position in a graph: a `TableState` is one content of
the table, and its `blocks` lead to what a block means and to the next state. Equal contents are
one object for all connections. A server that answers alike walks all connections through the
same states, and a block costs one lookup; only a new block is decoded byte by byte.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from squall.api.http import ResponseHead
from squall.clients.http.request import REDIRECTS
from squall.clients.http2.frames import FIRST_TABLE_BYTES
from squall.clients.http2.huffman import decoded_text
from squall.clients.http2.static_table import STATIC_ENTRIES, STATIC_TABLE

Pair = tuple[bytes, bytes]

# Together, over all states. A server that puts a new value into its table with every answer
# makes a new state each time.
MOST_BLOCKS = 8192
# Of one head, decoded: one byte of a block can name an entry of 4 kB.
MOST_LIST_BYTES = 1 << 20
# RFC 7541, 4.1: what an entry costs beside its bytes.
_ENTRY_BYTES = 32
_NAME = re.compile(rb"[!#$%&'*+\-.^_`|~0-9a-z]+").fullmatch
_LINE_BREAK = re.compile(rb"[\r\n\0]").search
# RFC 9113, 8.2.2: they speak of an HTTP/1 connection.
_OF_CONNECTION = frozenset(
    {b"connection", b"keep-alive", b"proxy-connection", b"transfer-encoding", b"upgrade"}
)


class HeaderError(ValueError):
    """The block cannot be decoded, so the table of its connection is lost."""


class HeaderBlock:
    """What a block means. `head` is None if it cannot begin a response, `is_trailer` says whether
    it can end one. `final` is the head unless it is that of an interim response."""

    __slots__ = ("final", "head", "is_trailer", "pairs", "status")

    def __init__(self, pairs: tuple[Pair, ...]) -> None:
        self.pairs = pairs
        self.status = 0
        self.head: ResponseHead | None = None
        self.final: ResponseHead | None = None
        plain = all(_is_plain(name, value) for name, value in pairs[1:])
        self.is_trailer = plain and (not pairs or _is_plain(*pairs[0]))
        if plain and pairs and pairs[0][0] == b":status" and _is_status(pairs[0][1]):
            self.status = int(pairs[0][1])
            self.head = _response_head(self.status, pairs[1:])
            self.final = self.head if self.status >= 200 else None


class TableState:
    """One content of a dynamic table: its entries, the newest first, and its size limit."""

    __slots__ = ("blocks", "entries", "limit")

    def __init__(self, entries: tuple[Pair, ...], limit: int) -> None:
        self.entries = entries
        self.limit = limit
        self.blocks: dict[bytes, tuple[HeaderBlock, TableState]] = {}


class HeaderStates:
    """The states that the connections of a share have reached."""

    __slots__ = ("_known", "_states", "first")

    def __init__(self) -> None:
        self.first = TableState((), FIRST_TABLE_BYTES)
        self._states: dict[tuple[tuple[Pair, ...], int], TableState] = {}
        self._known = 0

    def decode(self, state: TableState, block: bytes) -> tuple[HeaderBlock, TableState]:
        """The meaning of a block, and the state after it. Raises `HeaderError`."""
        known = state.blocks.get(block)
        if known is not None:
            return known
        pairs, entries, limit = decode_block(block, state.entries, state.limit)
        if self._known >= MOST_BLOCKS:
            # Connections go on from states that are forgotten here, and find each other again.
            self._states.clear()
            self.first.blocks.clear()
            state.blocks.clear()
            self._known = 0
        self._known += 1
        key = (entries, limit)
        following = self.first
        if key != (self.first.entries, self.first.limit):
            following = self._states.get(key) or self._states.setdefault(key, TableState(*key))
        known = state.blocks[block] = (HeaderBlock(pairs), following)
        return known


def decode_block(
    block: bytes, entries: tuple[Pair, ...], limit: int
) -> tuple[tuple[Pair, ...], tuple[Pair, ...], int]:
    """(Headers, the entries of the table afterwards, its limit afterwards)."""
    table = list(entries)
    pairs: list[Pair] = []
    position, end, total = 0, len(block), 0
    while position < end:
        first = block[position]
        if first & 0x80:
            index, position = _integer(block, position, 7)
            pair = _entry(index, table)
        elif first & 0x60 == 0x20:
            if pairs:
                raise HeaderError("a table size after the first header")
            limit, position = _integer(block, position, 5)
            if limit > FIRST_TABLE_BYTES:
                raise HeaderError("a table larger than allowed")
            _evict(table, limit)
            continue
        else:
            # 01: add it to the table; 0000 and 0001: do not.
            adds = bool(first & 0x40)
            index, position = _integer(block, position, 6 if adds else 4)
            if index:
                name = _entry(index, table)[0]
            else:
                name, position = _string(block, position)
            value, position = _string(block, position)
            pair = (name, value)
            if adds:
                table.insert(0, pair)
                _evict(table, limit)
        pairs.append(pair)
        total += len(pair[0]) + len(pair[1]) + _ENTRY_BYTES
        if total > MOST_LIST_BYTES:
            raise HeaderError(f"a head larger than {MOST_LIST_BYTES >> 20} MiB")
    return tuple(pairs), tuple(table), limit


def _entry(index: int, table: Sequence[Pair]) -> Pair:
    if 0 < index <= STATIC_ENTRIES:
        return STATIC_TABLE[index - 1]
    if not index or index > STATIC_ENTRIES + len(table):
        raise HeaderError("an entry that is not in the table")
    return table[index - STATIC_ENTRIES - 1]


def _evict(table: list[Pair], limit: int) -> None:
    used = sum([len(name) + len(value) + _ENTRY_BYTES for name, value in table])
    while used > limit:
        name, value = table.pop()
        used -= len(name) + len(value) + _ENTRY_BYTES


def _integer(block: bytes, position: int, bits: int) -> tuple[int, int]:
    """(Value, position after it); RFC 7541, 5.1."""
    most = (1 << bits) - 1
    value = block[position] & most
    position += 1
    if value < most:
        return value, position
    shift = 0
    while position < len(block):
        byte = block[position]
        position += 1
        value += (byte & 0x7F) << shift
        if not byte & 0x80:
            return value, position
        shift += 7
        if shift > 28:
            raise HeaderError("a number that is too large")
    raise HeaderError("a block that is cut off")


def _string(block: bytes, position: int) -> tuple[bytes, int]:
    if position >= len(block):
        raise HeaderError("a block that is cut off")
    is_huffman = block[position] & 0x80
    length, position = _integer(block, position, 7)
    text = block[position : position + length]
    if len(text) < length:
        raise HeaderError("a block that is cut off")
    if is_huffman:
        try:
            text = decoded_text(text)
        except ValueError as error:
            raise HeaderError("a text that is no Huffman code") from error
    return text, position + length


def _is_plain(name: bytes, value: bytes) -> bool:
    """Whether RFC 9113, 8.2 allows this field; pseudo-headers are no plain ones."""
    if _NAME(name) is None or name in _OF_CONNECTION:
        return False
    return _LINE_BREAK(value) is None and value == value.strip(b" \t")


def _is_status(value: bytes) -> bool:
    return len(value) == 3 and value.isdigit() and value >= b"100"


def _response_head(status: int, fields: Sequence[Pair]) -> ResponseHead | None:
    """The head as HTTP/1 would write it; None if its lengths contradict each other."""
    lengths = {value for name, value in fields if name == b"content-length"}
    length = -1
    if lengths:
        value = lengths.pop()
        if lengths or not value.isdigit() or len(value) > 18:
            return None
        length = int(value)
    lines = b"".join([b"%b: %b\r\n" % field for field in fields])
    special = status in REDIRECTS or any(name == b"set-cookie" for name, _ in fields)
    return ResponseHead(b"HTTP/2 %d\r\n%b\r\n" % (status, lines), status, length, special)
