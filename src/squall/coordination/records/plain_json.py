"""Checks data of the application before it is stored: it must be plain JSON.

Every call that takes such data checks it at once, where the application can still handle the error:
a record that cannot be encoded must not end a loop of the library.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from squall.coordination.errors import ConfigurationError
from squall.coordination.records.schemas import check_finite

# What encoding raises for data that JSON does not have.
NOT_PLAIN = (TypeError, ValueError, RecursionError)
# In characters. Some exceptions carry a whole page in their text.
ERROR_MAX = 8192


def plain_json(what: str, value: Any) -> bytes:
    """The value as it would be stored; raises `ConfigurationError` if it is not plain JSON."""
    try:
        plain = msgspec.to_builtins(value)
        check_finite((plain,))
        return msgspec.json.encode(plain, order="deterministic")
    except NOT_PLAIN as error:
        raise not_plain(what, value, error) from None


def not_plain(what: str, value: object, error: Exception) -> ConfigurationError:
    return ConfigurationError(
        f"{what} is {type(value).__name__}: it must be plain JSON data ({error});"
        f" use for example {what}={{'done': 3}}"
    )


def error_text(error: BaseException | str) -> str:
    """The text of any exception, also of one about a file whose name is not valid UTF-8."""
    text = error if isinstance(error, str) else f"{type(error).__name__}: {error}"
    shown = text.encode("utf-8", "backslashreplace").decode()
    return shown if len(shown) <= ERROR_MAX else f"{shown[:ERROR_MAX]}..."


class Metadata:
    """The metadata of heartbeats, from a function of the application. It must succeed at the start.
    If it fails later, beats go on with its last result: a member must not die of it."""

    def __init__(
        self,
        read: Callable[[], Mapping[str, Any]],
        on_failure: Callable[[str, Exception], None],
    ) -> None:
        self._read = read
        self._on_failure = on_failure
        self._is_failing = False
        self._last = self._checked()

    def __call__(self) -> dict[str, Any]:
        try:
            self._last = self._checked()
            self._is_failing = False
        except Exception as error:
            if not self._is_failing:
                self._is_failing = True
                self._on_failure("metadata_failed", error)
        return self._last

    def _checked(self) -> dict[str, Any]:
        found = dict(self._read())
        if found:
            plain_json("metadata", found)
        return found
