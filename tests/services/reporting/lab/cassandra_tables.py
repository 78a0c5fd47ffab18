"""Tables as Cassandra keeps them, and the statements that the output uses. Anything else, wrong
names and wrong values among it, is refused."""

from __future__ import annotations

import re
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

_TOKEN = re.compile(r"""\s*("[^"]+"|'[^']*'|>=|[\w.]+|[(),=?*])""")
_FIXED = {"bigint": ">q", "double": ">d", "boolean": ">?", "timestamp": ">q"}
TYPES = ("text", *_FIXED)
Bind = tuple[str, str]
"""The name and the type of a value that a statement waits for."""


class Refused(Exception):
    """The statement is not valid."""


@dataclass
class StoredTable:
    types: dict[str, str]
    partition: list[str]
    clustering: list[str]
    rows: dict[tuple[Any, ...], dict[str, Any]] = field(default_factory=dict)

    @property
    def key(self) -> list[str]:
        return self.partition + self.clustering


@dataclass
class Write:
    """An INSERT or a DELETE; `values` has the literals, None waits for a value."""

    table: str
    names: list[str]
    values: list[str | None]
    is_delete: bool

    def binds(self, tables: dict[str, StoredTable]) -> list[Bind]:
        types = tables[self.table].types
        pairs = zip(self.names, self.values, strict=True)
        return [(name, types[name]) for name, value in pairs if value is None]


class Tokens:
    def __init__(self, statement: str) -> None:
        self._words: list[str] = []
        place = 0
        while place < len(statement.rstrip()):
            found = _TOKEN.match(statement, place)
            if found is None:
                raise Refused(f"no viable alternative at {statement[place:]}")
            self._words.append(found[1])
            place = found.end()

    @property
    def peek(self) -> str:
        return self._words[0] if self._words else ""

    def next(self) -> str:
        if not self._words:
            raise Refused("the statement ends too early")
        return self._words.pop(0)

    def take(self, words: str) -> None:
        for word in words.split():
            found = self.next()
            if found.upper() != word:
                raise Refused(f"{word} expected, not {found}")

    def has(self, word: str) -> bool:
        """Takes the word if it comes next."""
        if self.peek.upper() == word:
            self._words.pop(0)
            return True
        return False

    def name(self) -> str:
        word = self.next()
        if word.startswith('"'):
            return word[1:-1]
        if not re.fullmatch(r"[a-zA-Z][\w.]*", word):
            raise Refused(f"{word} is not a name")
        return word.lower()

    def value(self) -> str | None:
        """The text of a literal, or None for a value that comes later."""
        word = self.next()
        return None if word == "?" else word.strip("'")

    def listed(self, item: Any) -> list[Any]:
        """Items in parentheses."""
        self.take("(")
        found = [item()]
        while self.has(","):
            found.append(item())
        self.take(")")
        return found

    def end(self) -> None:
        if self._words:
            raise Refused(f"extraneous input {self._words}")


class Keyspace:
    """The tables of one keyspace."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.tables: dict[str, StoredTable] = {}
        self.inserted: list[str] = []
        """The table of each INSERT, in their order."""

    def stored(self, name: str) -> StoredTable:
        if name not in self.tables:
            raise Refused(f"unconfigured table {name}")
        return self.tables[name]

    def create(self, tokens: Tokens) -> str:
        tokens.take("IF NOT EXISTS")
        name = tokens.name()
        table = StoredTable({}, [], [])

        def column() -> None:
            if tokens.has("PRIMARY"):
                tokens.take("KEY")
                partition, *clustering = tokens.listed(key_part)
                table.partition, table.clustering = partition, [each for (each,) in clustering]
                return
            found, kind = tokens.name(), tokens.next()
            if kind not in TYPES or found in table.types:
                raise Refused(f"column {found} {kind}")
            table.types[found] = kind
            if tokens.has("PRIMARY"):
                tokens.take("KEY")
                table.partition = [found]

        def key_part() -> list[str]:
            return tokens.listed(tokens.name) if tokens.peek == "(" else [tokens.name()]

        tokens.listed(column)
        tokens.end()
        if not table.partition or not set(table.key) <= set(table.types):
            raise Refused(f"the primary key of {name}")
        self.tables.setdefault(name, table)
        return name

    def alter(self, tokens: Tokens) -> str:
        name = tokens.name()
        table = self.stored(name)
        tokens.take("ADD")
        column, kind = tokens.name(), tokens.next()
        tokens.end()
        if column in table.types or kind not in TYPES:
            raise Refused(f"column {column} {kind}")
        table.types[column] = kind
        return name

    def insert(self, tokens: Tokens) -> Write:
        tokens.take("INTO")
        name = tokens.name()
        names = tokens.listed(tokens.name)
        tokens.take("VALUES")
        values = tokens.listed(tokens.value)
        tokens.end()
        table = self.stored(name)
        unknown = set(names) - set(table.types)
        if unknown or len(values) != len(names) or not set(table.key) <= set(names):
            raise Refused(f"unknown columns {unknown}, or some of the key are missing")
        return Write(name, names, values, is_delete=False)

    def delete(self, tokens: Tokens) -> Write:
        """Deletes the rows of a partition from a place on."""
        tokens.take("FROM")
        name = tokens.name()
        table = self.stored(name)
        names, values = [], []
        for number, relation in enumerate(("=", ">=")):
            tokens.take("AND" if number else "WHERE")
            names.append(tokens.name())
            tokens.take(relation)
            values.append(tokens.value())
        tokens.end()
        if names != table.key:
            raise Refused(f"some partition key parts are missing: {table.key}")
        return Write(name, names, values, is_delete=True)

    def write(self, write: Write, values: Sequence[Any]) -> None:
        table = self.stored(write.table)
        rest = iter(values)
        row = {
            name: next(rest) if text is None else _literal(text, table.types[name])
            for name, text in zip(write.names, write.values, strict=True)
        }
        if any(row[name] is None for name in table.key):
            raise Refused(f"null in the primary key of {write.table}")
        key = tuple(row[name] for name in table.key)
        if write.is_delete:
            for each in [each for each in table.rows if each[:1] == key[:1] and each >= key]:
                del table.rows[each]
            return
        self.inserted.append(write.table)
        table.rows.setdefault(key, {}).update(row)

    def rows(self, name: str) -> list[dict[str, Any]]:
        table = self.stored(name)
        empty = dict.fromkeys(table.types)
        return [empty | table.rows[key] for key in sorted(table.rows)]


def decoded(data: bytes | None, kind: str) -> Any:
    """A value as the protocol carries it."""
    if data is None:
        return None
    if kind == "text":
        return data.decode()
    if len(data) != struct.calcsize(_FIXED[kind]):
        raise Refused(f"{len(data)} bytes are no {kind}")
    return struct.unpack(_FIXED[kind], data)[0]


def encoded(value: Any, kind: str) -> bytes | None:
    if value is None:
        return None
    return value.encode() if kind == "text" else struct.pack(_FIXED[kind], value)


def _literal(text: str, kind: str) -> Any:
    return text if kind == "text" else {"bigint": int, "double": float}[kind](text)
