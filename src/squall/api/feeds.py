"""Feeds: rows of data for iterations and users, from a file or a list.

`user = Feed("users.csv", User)` makes `self.user` the current row. All rows are read and
converted before the run: a row that does not fit its type is an error that names the line, never
a failed iteration. The number of a share alone decides which rows it takes, so rows are unique
over processes and machines without coordination.
"""

from __future__ import annotations

import csv
import io
import random as random_module
from collections.abc import Iterator, Sequence
from os import PathLike
from pathlib import Path
from typing import Any, Generic, Literal, TypeVar, cast, overload

import msgspec

from squall.api.errors import ConfigError
from squall.api.quantities import one_of, wrong

T = TypeVar("T")

Per = Literal["iteration", "vu"]
Take = Literal["cycle", "random", "once"]

_FORMATS = {".csv": "csv", ".json": "json", ".jsonl": "lines", ".ndjson": "lines"}


class FeedExhausted(Exception):
    """A `take="once"` feed has no row left; the workflow ends early."""


class Feed(Generic[T]):
    """Rows of data: `user = Feed("users.csv", User)` makes `self.user` the present row.

    `source` is the path of a CSV, JSON or JSON lines file, or a list. `row` is the type of a row: a
    dataclass, a msgspec `Struct` or a `TypedDict`; without it, rows of a file are dicts. `per` says
    how long a row is kept, `take` which one comes next: each in turn (`"cycle"`), any
    (`"random"`), or each exactly once over all processes (`"once"`).
    """

    # It is a non-data descriptor on purpose: the runner writes the row into the instance's
    # `__dict__` under the feed's name, and reading it costs a plain attribute lookup.

    @overload
    def __init__(
        self: Feed[dict[str, Any]],
        source: str | PathLike[str],
        row: None = None,
        *,
        per: Per = "iteration",
        take: Take = "cycle",
        delimiter: str = ",",
    ) -> None: ...
    @overload
    def __init__(
        self,
        source: Sequence[T],
        row: None = None,
        *,
        per: Per = "iteration",
        take: Take = "cycle",
        delimiter: str = ",",
    ) -> None: ...
    @overload
    def __init__(
        self,
        source: str | PathLike[str] | Sequence[Any],
        row: type[T],
        *,
        per: Per = "iteration",
        take: Take = "cycle",
        delimiter: str = ",",
    ) -> None: ...
    def __init__(
        self,
        source: str | PathLike[str] | Sequence[Any],
        row: type[Any] | None = None,
        *,
        per: Per = "iteration",
        take: Take = "cycle",
        delimiter: str = ",",
    ) -> None:
        if not _is_source(source):
            hint = 'give a path, such as "users.csv", or a list of rows'
            raise wrong("Feed", source, "is no source of rows", hint)
        if row is not None and not isinstance(row, type):  # pyright: ignore[reportUnnecessaryIsInstance]
            hint = "give a dataclass, a msgspec Struct or a TypedDict"
            raise wrong("Feed row", row, "is not a type", hint)
        self.name = "feed"
        self.source = source
        self.row = row
        self.per: Per = one_of("Feed per", per, ("iteration", "vu"))
        self.take: Take = one_of("Feed take", take, ("cycle", "random", "once"))
        self.delimiter = _delimiter(delimiter)

    def __set_name__(self, owner: type[Any], name: str) -> None:
        self.name = name

    @overload
    def __get__(self, instance: None, owner: type[Any]) -> Feed[T]: ...
    @overload
    def __get__(self, instance: object, owner: type[Any]) -> T: ...
    def __get__(self, instance: object | None, owner: type[Any]) -> Feed[T] | T:
        if instance is None:
            return self
        when = "iteration" if self.per == "iteration" else "virtual user"
        raise AttributeError(
            f"{owner.__name__}.{self.name} has no row yet: "
            f"it gets one at the start of the first {when}"
        )

    @property
    def path(self) -> str | None:
        """The file as the author wrote it; None when the rows are a list."""
        return str(self.source) if isinstance(self.source, str | PathLike) else None

    def load(self, base_dir: str | PathLike[str]) -> list[T]:
        """Reads and converts every row. A relative path starts at the author's folder."""
        source = self.source
        if isinstance(source, str | PathLike):
            rows = self._load_file(Path(base_dir), str(source))
        else:
            rows = [
                self._convert(row, f"feed {self.name}[{at}]", strict=True)
                for at, row in enumerate(source)
            ]
        if not rows:
            raise ConfigError(f"feed {self.name}: {self.path or 'the list'} has no rows")
        return rows

    def _load_file(self, base_dir: Path, written: str) -> list[T]:
        path = base_dir / written
        kind = _FORMATS.get(path.suffix.lower())
        if kind is None:
            raise ConfigError(
                f"feed {self.name}: {written} has an unknown type; use .csv, .json or .jsonl"
            )
        try:
            data = path.read_bytes()
        except FileNotFoundError:
            raise ConfigError(
                f"feed {self.name}: no file {written} in {base_dir} (the folder of the workflow)"
            ) from None
        except OSError as error:
            raise ConfigError(f"feed {self.name}: {written}: {error.strerror}") from None
        if kind == "csv":
            found = _read_csv(data, written, self.delimiter)
        else:
            found = {"json": _read_json, "lines": _read_lines}[kind](data, written)
        # CSV has only text, so "17" may become a number; JSON has types of its own.
        return [self._convert(row, where, strict=kind != "csv") for where, row in found]

    def _convert(self, row: Any, where: str, *, strict: bool) -> T:
        if self.row is None:
            if self.path is not None and not isinstance(row, dict):
                raise ConfigError(f"{where}: Expected an object with named values")
            return cast(T, row)
        if type(row) is self.row:
            return cast(T, row)
        try:
            return msgspec.convert(row, self.row, strict=strict)
        except msgspec.ValidationError as error:
            raise ConfigError(f"{where}: {_reason(error)}") from None
        except TypeError as error:
            raise ConfigError(
                f"feed {self.name}: rows cannot become {self.row.__name__}: {error}"
            ) from None


class FeedCursor(Generic[T]):
    """Returns the rows of one share in turn: share k of n takes rows k, k + n, k + 2n ..."""

    def __init__(
        self,
        rows: Sequence[T],
        take: Take,
        share: int = 0,
        shares: int = 1,
        random: random_module.Random | None = None,
    ) -> None:
        if not 0 <= share < shares:
            raise ValueError(f"there is no share {share} of {shares}")
        # The part of one datacenter may have no row of a feed that is shorter than there are parts.
        if not rows and take != "once":
            raise ValueError("a feed needs rows")
        self._random = random or random_module.Random()
        self._take: Take = take
        if take == "random":
            self._rows = rows
        else:
            self._rows = rows if shares == 1 else rows[share::shares]
            if not self._rows and take == "cycle":
                # More shares than rows: rows repeat over the shares, as they do over time.
                self._rows = rows[share % len(rows) :][:1]
        self._at = 0

    def skip(self, count: int) -> None:
        """Skips this many rows, as if `next` had returned them."""
        if self._take == "once":
            self._at = min(count, len(self._rows))
        elif self._rows:
            self._at = count % len(self._rows)

    def next(self) -> T:
        """Returns the next row. Raises `FeedExhausted` after the last row of a `once` feed."""
        if self._take == "random":
            return self._random.choice(self._rows)
        at = self._at
        if at == len(self._rows):
            if self._take == "once":
                raise FeedExhausted
            at = 0
        self._at = at + 1
        return self._rows[at]


def _read_csv(data: bytes, name: str, delimiter: str) -> Iterator[tuple[str, dict[str, str]]]:
    text = io.StringIO(_text(data, name), newline="")
    reader = csv.reader(text, strict=True, delimiter=delimiter)
    header: list[str] | None = None
    line = 1
    try:
        for values in reader:
            # A quoted value may span lines; a row is named by its first.
            where, line = f"{name}:{line}", reader.line_num + 1
            if not values:
                continue
            if header is None:
                header = [column.strip() for column in values]
                if len(set(header)) != len(header):
                    raise ConfigError(f"{where}: two columns have the same name")
            elif len(values) != len(header):
                raise ConfigError(f"{where}: {len(values)} values for {len(header)} columns")
            else:
                yield where, dict(zip(header, values, strict=True))
    except csv.Error as error:
        raise ConfigError(f"{name}:{line}: {error}") from None


def _read_json(data: bytes, name: str) -> Iterator[tuple[str, Any]]:
    try:
        rows = msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{name}: {_reason(error)}") from None
    if not isinstance(rows, list):
        raise ConfigError(f"{name}: Expected a list of rows, [{{...}}, ...]")
    for at, row in enumerate(cast("list[Any]", rows)):
        yield f"{name}[{at}]", row


def _read_lines(data: bytes, name: str) -> Iterator[tuple[str, Any]]:
    for number, line in enumerate(data.split(b"\n"), 1):
        if not line.strip():
            continue
        try:
            yield f"{name}:{number}", msgspec.json.decode(line)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise ConfigError(f"{name}:{number}: {_reason(error)}") from None


def _text(data: bytes, name: str) -> str:
    try:
        # Spreadsheets write a byte order mark; without -sig it would be part of the first name.
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise ConfigError(f"{name}:{line}: not UTF-8; save the file as UTF-8") from None


def _reason(error: Exception) -> str:
    return str(error).replace("`", "")


def _is_source(source: object) -> bool:
    if isinstance(source, str):
        return bool(source)
    # Bytes are a sequence too, of numbers.
    return isinstance(source, PathLike | Sequence) and not isinstance(source, bytes | bytearray)


def _delimiter(value: Any) -> str:
    if not isinstance(value, str) or len(value) != 1 or value in '"\r\n':
        hint = r'write one, such as ";" or "\t"'
        raise wrong("Feed delimiter", value, "is not one character", hint)
    return value
