"""Keeps the values of `--secret` out of everything that is printed or written.

A value is replaced wherever it appears, also in its encoding for a query or a form. Values of
fewer than four characters are left alone: replacing every `1` of a report would destroy it and
still reveal the secret.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, cast

SHOWN = "***"
_URL_CREDENTIALS = re.compile(r"//[^\s,]*@")
_SECRET_OPTION = re.compile(
    r"(?i)\b([\w-]*(?:password|passwd|token|secret|key|credential|auth|header)[\w-]*)=(?!env:|@)[^,]+"
)
_LEAST_CHARS = 4


class Redactor:
    """`redact(text)` replaces secrets; without secrets it returns the text unchanged."""

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        values = [secret for secret in secrets if len(secret) >= _LEAST_CHARS]
        if not values:
            self._shapes: list[str] = []
            return
        from urllib.parse import quote, quote_plus

        shapes = {form(value) for value in values for form in (str, quote, quote_plus)}
        # A secret that contains another one must go first, or its rest would be shown.
        self._shapes = sorted(shapes, key=len, reverse=True)

    @property
    def has_secrets(self) -> bool:
        return bool(self._shapes)

    def __call__(self, text: str) -> str:
        for shape in self._shapes:
            text = text.replace(shape, SHOWN)
        return text

    def document(self, value: Any) -> Any:
        """The same document with every string redacted, keys included."""
        if not self._shapes:
            return value
        if isinstance(value, str):
            return self(value)
        if isinstance(value, dict):
            items = cast(dict[str, Any], value)
            return {self(key): self.document(entry) for key, entry in items.items()}
        if isinstance(value, list):
            return [self.document(entry) for entry in cast(list[Any], value)]
        return value


def without_credentials(text: str) -> str:
    """The text of an option without the credentials of URLs and the values of options that are
    named like secrets. Where a secret comes from (`env:NAME`, `@FILE`) stays visible."""
    return _SECRET_OPTION.sub(rf"\1={SHOWN}", _URL_CREDENTIALS.sub(f"//{SHOWN}@", text))
