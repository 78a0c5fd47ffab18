"""Values for class bodies: environment variables and credentials."""

from __future__ import annotations

import os

from squall.api.errors import ConfigError
from squall.api.quantities import text_of, wrong


def env(name: str, default: str | None = None) -> str:
    """Reads an environment variable, which `-e NAME=value` sets. Raises ConfigError if it is
    missing and there is no default."""
    if not text_of("env", name, 'give the name of a variable, such as env("TOKEN")'):
        raise wrong("env", name, "is no name", 'write one, such as env("TOKEN")')
    if default is not None:
        text_of(f'env("{name}") default', default, "variables are text")
    value = os.environ.get(name, default)
    if value is None:
        raise ConfigError(
            f"environment variable {name} is not set; pass -e {name}=... or give env() a default"
        )
    return value


def bearer(token: str) -> str:
    """Credentials for an `Auth` argument: `Authorization: Bearer <token>`."""
    if not isinstance(token, str) or not token:  # pyright: ignore[reportUnnecessaryIsInstance]
        # The token is a secret, so the message does not show it.
        raise ConfigError(f"bearer() takes a token as text, not {type(token).__name__}")
    return f"Bearer {token}"
