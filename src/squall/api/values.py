"""Values for class bodies: environment variables and credentials."""

from __future__ import annotations

import os

from squall.api.errors import ConfigError


def env(name: str, default: str | None = None) -> str:
    """Reads an environment variable, which `-e NAME=value` sets. Raises ConfigError if it is
    missing and there is no default."""
    value = os.environ.get(name, default)
    if value is None:
        raise ConfigError(
            f"environment variable {name} is not set; pass -e {name}=... or give env() a default"
        )
    return value


def bearer(token: str) -> str:
    """Credentials for an `Auth` argument: `Authorization: Bearer <token>`."""
    return f"Bearer {token}"
