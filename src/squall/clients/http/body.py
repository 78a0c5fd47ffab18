"""Turns an author's values into request bodies with their content type.

`data` sends text and bytes unchanged and everything else as JSON, `form` is urlencoded, `files`
is multipart. A file is read once and kept; its path is relative to the author's file, never to
the working directory.
"""

from __future__ import annotations

import mimetypes
import re
import secrets
from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from typing import Any, cast

import msgspec

from squall.api.arguments import Prepared
from squall.api.errors import CallError
from squall.clients.http.encode import plain_text, urlencoded

_UNSENDABLE = re.compile(r"[^\x20-\x7e]")
JSON = b"application/json"
_FORM = b"application/x-www-form-urlencoded"


class PreparedBody(Prepared):
    """Bytes to send; an empty content type sends no Content-Type line."""

    __slots__ = ("content", "content_type")

    def __init__(self, value: Any, content: bytes, content_type: bytes) -> None:
        super().__init__(value)
        self.content = content
        self.content_type = content_type


class PreparedFile(PreparedBody):
    """The content of a file: a part of a multipart body, or a body by itself."""

    __slots__ = ("name",)

    def __init__(self, value: Any, name: str, content: bytes, content_type: str = "") -> None:
        kind = content_type or mimetypes.guess_type(name)[0] or "application/octet-stream"
        super().__init__(value, content, kind.encode())
        self.name = name


def data_of(value: Any) -> PreparedBody:
    if isinstance(value, str):
        return PreparedBody(value, value.encode(), b"text/plain; charset=utf-8")
    if isinstance(value, bytes | bytearray):
        return PreparedBody(value, bytes(value), b"application/octet-stream")
    return json_of(value, "data")


def json_of(value: Any, what: str = "json") -> PreparedBody:
    return PreparedBody(value, encoded_json(value, what), JSON)


def encoded_json(value: Any, what: str = "json") -> bytes:
    try:
        return _ENCODER.encode(value)
    except (TypeError, ValueError, OverflowError) as error:
        kinds = "text, bytes or what JSON can hold" if what == "data" else "what JSON can hold"
        text = f"{what}= got {_kind(value)}: it takes {kinds} ({error})"
        raise CallError(text) from error


def form_of(value: Any) -> PreparedBody:
    if not isinstance(value, Mapping):
        raise CallError(f"form must be a mapping such as {{...}}, not {type(value).__name__}")
    return PreparedBody(value, urlencoded(value), _FORM)  # pyright: ignore[reportUnknownArgumentType]


def file_of(value: Any, base_dir: Path) -> PreparedFile:
    """Reads the file at a path, or takes one from memory: (name, content) or (name, content,
    type)."""
    if isinstance(value, tuple):
        return _in_memory(cast("tuple[Any, ...]", value))
    if not isinstance(value, str | PathLike):
        raise CallError(f"a file is a path or (name, content, type), not {type(value).__name__}")
    path = base_dir / Path(value)  # pyright: ignore[reportUnknownArgumentType]
    try:
        content = path.read_bytes()
    except OSError as error:
        raise CallError(f"cannot read {path}: {error.strerror or error}") from error
    return PreparedFile(value, path.name, content)


def _in_memory(value: tuple[Any, ...]) -> PreparedFile:
    name, content, kind = (*value, "", "", "")[:3]
    if len(value) not in (2, 3) or not isinstance(name, str) or not isinstance(kind, str):
        raise CallError("a file in memory is (name, content) or (name, content, type)")
    if not isinstance(content, str | bytes | bytearray):
        raise CallError(f"the content of file {name!r} is bytes or text, not {_kind(content)}")
    if _UNSENDABLE.search(kind):
        raise CallError(f"the type of file {name!r} has characters that are not allowed")
    data = content.encode() if isinstance(content, str) else bytes(content)
    return PreparedFile(value, name, data, kind)


def multipart_of(fields: Mapping[str, Any], files: Mapping[str, PreparedFile]) -> PreparedBody:
    """multipart/form-data; the fields come first, as browsers send them."""
    boundary = secrets.token_hex(16).encode()
    parts: list[bytes] = []
    for name, value in fields.items():
        parts.append(
            b'--%b\r\nContent-Disposition: form-data; name="%b"\r\n\r\n%b\r\n'
            % (boundary, _quoted(name), plain_text(value).encode())
        )
    for name, file in files.items():
        parts.append(
            b'--%b\r\nContent-Disposition: form-data; name="%b"; filename="%b"\r\n'
            b"Content-Type: %b\r\n\r\n%b\r\n"
            % (boundary, _quoted(name), _quoted(file.name), file.content_type, file.content)
        )
    parts.append(b"--%b--\r\n" % boundary)
    return PreparedBody(None, b"".join(parts), b"multipart/form-data; boundary=" + boundary)


def _kind(value: Any) -> str:
    name = type(value).__name__
    return f"an {name}" if name[:1].lower() in "aeiou" else f"a {name}"


def _quoted(text: str) -> bytes:
    """Escapes a name in a multipart body as the HTML standard does."""
    escaped = text.replace('"', "%22").replace("\r", "%0D").replace("\n", "%0A")
    return escaped.encode()


def _model(value: Any) -> Any:
    """Converts models that have a plain form (pydantic's `model_dump`)."""
    dump = getattr(value, "model_dump", None)
    if dump is None:
        raise TypeError(f"{type(value).__name__} cannot be written as JSON")
    return dump(mode="json")


_ENCODER = msgspec.json.Encoder(enc_hook=_model)
