"""Argument types that are prepared once, before the clock starts.

Authors and type checkers see a `URL` as a string; the planner finds the class in the
annotation. A client turns the default value into its own `Prepared` subclass (resolved address,
encoded bytes). Hooks receive that object and pass it to the client unchanged. `str(prepared)`
returns the author's text.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from os import PathLike
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, overload


class Prepared:
    """A value encoded before the run; opaque to the author."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value

    def __str__(self) -> str:
        return str(self.value)


class FileSet(Prepared, Sequence[Prepared]):
    """The files of a `Directory` or `FileGlob`, in the order of their paths. `str()` of a file is
    its path: in the directory, or from the workflow file. Each may be sent as a `File`."""

    __slots__ = ("files",)

    def __init__(self, value: Any, files: Sequence[Prepared]) -> None:
        super().__init__(value)
        self.files = tuple(files)

    @overload
    def __getitem__(self, index: int) -> Prepared: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Prepared]: ...
    def __getitem__(self, index: int | slice) -> Prepared | Sequence[Prepared]:
        return self.files[index]

    def __len__(self) -> int:
        return len(self.files)


class ProtobufMessage(Protocol):
    """A message of a generated module."""

    def SerializeToString(self) -> bytes: ...


if TYPE_CHECKING:
    from squall.api.protocols.smtp import EmailParts

    URL: TypeAlias = str | Prepared
    Headers: TypeAlias = Mapping[str, str] | Prepared
    Params: TypeAlias = Mapping[str, str | float | bool] | Prepared
    Cookies: TypeAlias = Mapping[str, str] | Prepared
    Data: TypeAlias = Mapping[str, Any] | Sequence[Any] | str | bytes | Prepared
    Form: TypeAlias = Mapping[str, str | float] | Prepared
    Auth: TypeAlias = tuple[str, str] | str | Prepared
    File: TypeAlias = (
        str | PathLike[str] | tuple[str, str | bytes] | tuple[str, str | bytes, str] | Prepared
    )
    # A text is a sequence of texts, and each of them could be a `File`: so one file of the set
    # is a `File` for a checker, too.
    Directory: TypeAlias = Sequence[str | Prepared]
    FileGlob: TypeAlias = Sequence[str | Prepared]
    Email: TypeAlias = EmailParts | Prepared
    Protobuf: TypeAlias = ProtobufMessage | Mapping[str, Any] | bytes | Prepared
    Query: TypeAlias = str | Prepared
    Mutation: TypeAlias = str | Prepared
    SQL: TypeAlias = str | Prepared
    Document: TypeAlias = Mapping[str, Any] | Sequence[Mapping[str, Any]] | Prepared
else:

    class URL(Prepared):
        """An address: absolute, or a path that begins with `/` and uses the host. `{name}` in it is
        filled by `path=`."""

    class Headers(Prepared):
        """Request headers, as a dict. A header that Squall sends by default is replaced."""

    class Params(Prepared):
        """Query parameters, as a dict; added to a query that the URL already has."""

    class Cookies(Prepared):
        """Cookies of one request, as a dict; added to those of the user, and not stored."""

    class Data(Prepared):
        """A body: a dict or list is sent as JSON, text and bytes are sent unchanged."""

    class Form(Prepared):
        """A body of form fields, as a dict; sent as `application/x-www-form-urlencoded`."""

    class Auth(Prepared):
        """Credentials: `("user", "password")` for basic authentication, or a whole value such as
        `"Bearer ..."`, which `bearer(token)` makes."""

    class File(Prepared):
        """The path of a file that is sent as a part of a multipart body, `files={"picture": file}`.
        It is relative to the workflow file, and read once, before the clock starts."""

    class Directory(Prepared):
        """The path of a directory: all files in it and below it. It is relative to the workflow
        file, and its files are read once, before the clock starts."""

    class FileGlob(Prepared):
        """A pattern such as `"pictures/*.png"` or `"data/**/*.json"`: all files that match. It is
        relative to the workflow file, and the files are read once, before the clock starts."""

    class Email(Prepared):
        """A mail, as a dict of its parts (`EmailParts`). It becomes one MIME message with its
        attachments, once, before the clock starts."""

    class Protobuf(Prepared):
        """A message of a gRPC call: a message of a generated module, a dict of its fields, or its
        bytes. It is encoded once, before the clock starts."""

    class Query(Prepared):
        """A GraphQL document: a query or a subscription. It is parsed and encoded once, before the
        clock starts."""

    class Mutation(Prepared):
        """A GraphQL document with a mutation; prepared as a `Query`."""

    class SQL(Prepared):
        """A statement of PostgreSQL or MySQL. Each connection prepares it once."""

    class Document(Prepared):
        """A document of MongoDB, or a list of them: a filter, a change, what is inserted, a
        pipeline. It is encoded once, before the clock starts."""


def argument_kinds() -> tuple[type[Prepared], ...]:
    """The run-time classes behind the aliases, for the planner and the clients."""
    # Those of HTTP come first, in this order; clients of other protocols add theirs at the end.
    names = ("URL", "Headers", "Params", "Cookies", "Data", "Form", "Auth", "File")
    names += ("Protobuf", "Query", "Mutation", "SQL", "Document")
    names += ("Directory", "FileGlob", "Email")
    module: dict[str, Any] = globals()
    return tuple(module[name] for name in names)
