"""What a client sends to a server of files, and where to."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from squall.api.arguments import FileSet, Prepared
from squall.api.errors import CallError
from squall.clients.http.body import PreparedBody, PreparedFile

_CONTROL = re.compile(r"[\x00-\x1f\x7f]")


def content_of(value: Any, read_file: Callable[[Any], PreparedFile]) -> tuple[bytes, str]:
    """(Content, name) of a file, or of bytes, which have no name."""
    if isinstance(value, PreparedFile):
        return value.content, value.name
    if isinstance(value, bytes | bytearray):
        return bytes(value), ""
    if isinstance(value, PreparedBody):
        return value.content, ""
    if isinstance(value, FileSet):
        raise CallError(f"{value} has {len(value)} files; put one of them at a time")
    if isinstance(value, Prepared):
        raise CallError(f"put() sends a File or bytes, not {type(value).__name__}")
    file = read_file(value)
    return file.content, file.name


def remote_path(path: Any, name: str = "") -> str:
    """The path on the server; one that ends with "/" gets the name of the file."""
    if not isinstance(path, str) or not path:
        raise CallError(f"the path on the server is text, not {path!r}")
    if _CONTROL.search(path):
        raise CallError(f"the path {path!r} has characters that are not allowed")
    if path.endswith("/") and name:
        return path + name
    return path
