"""Reads from the flags of a command which cluster to use; `squall.store_mode.access` finds it."""

from __future__ import annotations

from argparse import Namespace

from squall.cluster.client.access import AccessOptions, ClusterAccess
from squall.store_mode import access


def client_access(arguments: Namespace, *, comes_first: bool = False) -> ClusterAccess:
    """With `comes_first` the command may name a store that no agent has opened yet."""
    given = vars(arguments)
    options = AccessOptions(
        to=given.get("to") or "",
        store=given.get("store") or "",
        prefix=given.get("prefix") or "",
        secret_file=arguments.secret_file or "",
        cluster=arguments.cluster or "",
    )
    return access.client_access(options, comes_first=comes_first)


def store_url(arguments: Namespace) -> str:
    given = vars(arguments)
    return access.store_url(given.get("store"), given.get("to"))
