"""Small values for class bodies: the environment and credentials."""

from __future__ import annotations

import os

from squall.api.errors import ConfigError


def env(name: str, default: str | None = None) -> str:
    """The environment variable, which `-e NAME=value` sets; missing without a default
    is a configuration error before the first request."""
    value = os.environ.get(name, default)
    if value is None:
        raise ConfigError(
            f"environment variable {name} is not set; pass -e {name}=... or give env() a default"
        )
    return value


def bearer(token: str) -> str:
    """Credentials for an `Auth` argument: `Authorization: Bearer <token>`."""
    return f"Bearer {token}"
