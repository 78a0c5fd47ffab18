"""Parses `--members` of `squall manager` and `squall gate`."""

from __future__ import annotations

from squall.api.errors import UsageError
from squall.cli.shared.node_settings import checked_name
from squall.cluster.client.access import address_of
from squall.cluster.ledger.replica.types import FORMED_SIZES
from squall.runtime.interfaces import Address


def members_of(
    entries: list[str], *, any_size: bool = False, role: str = "manager"
) -> dict[str, Address]:
    """Parses `m1=10.0.0.1:7400,m2=...`; the flag may be repeated. With `any_size` the members
    only say where an existing group is."""
    found: dict[str, Address] = {}
    for word in ",".join(entries).split(","):
        name, equals, address = word.strip().partition("=")
        if not name or not equals:
            raise UsageError(f"--members {word.strip()}: write NAME=HOST:PORT")
        checked_name(name, "--members")
        if name in found:
            raise UsageError(f"--members: {name} is named twice")
        found[name] = address_of(address, f"--members {name}=")
    if len(set(found.values())) < len(found):
        raise UsageError(f"--members: two {role}s have the same address")
    if any_size:
        return found
    if len(found) == 2:
        raise UsageError("--members: a group of 2 survives no failure; use 1 or 3")
    if len(found) not in FORMED_SIZES:
        raise UsageError(f"--members: {len(found)} {role}s; a group has 1, 3 or 5")
    return found
