"""What an application gives to be stored: plain JSON data, or one line that says why it is not.

Whoever takes such data asks here first: a record that cannot be written must be found where the
application can still do something about it, and must never end a loop of the library.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from squall.coordination.errors import ConfigurationError
from squall.coordination.records import check_finite

NOT_PLAIN = (TypeError, ValueError, RecursionError)
"""What encoding raises for data that JSON does not have."""
ERROR_MAX = 8192
"""Characters. Some exceptions carry a whole page in their text."""


def plain_json(what: str, value: Any) -> bytes:
    """As it would be stored; `ConfigurationError` if it cannot be."""
    try:
        plain = msgspec.to_builtins(value)
        check_finite((plain,))
        return msgspec.json.encode(plain, order="deterministic")
    except NOT_PLAIN as error:
        raise not_plain(what, value, error) from None


def not_plain(what: str, value: object, error: Exception) -> ConfigurationError:
    return ConfigurationError(
        f"{what} is {type(value).__name__}: it must be plain JSON data ({error});"
        f" {what}={{'done': 3}} is right"
    )


def error_text(error: BaseException | str) -> str:
    """Of any exception, also of one about a file whose name is no text."""
    text = error if isinstance(error, str) else f"{type(error).__name__}: {error}"
    shown = text.encode("utf-8", "backslashreplace").decode()
    return shown if len(shown) <= ERROR_MAX else f"{shown[:ERROR_MAX]}..."


class Metadata:
    """Of a heartbeat, from a function of the application. At the start it has to work; when it
    fails later the beats go on with what it said last, because a member must not die of it."""

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
