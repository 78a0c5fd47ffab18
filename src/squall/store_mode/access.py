"""Finds the cluster that a client asks for: managers, or agents that meet in a store.

    a store     --store     SQUALL_STORE; its keys: --prefix, SQUALL_STORE_PREFIX

Everything else (addresses, secret, cluster id) comes from `squall.cluster.client.access`. The
modules of store mode are imported only once a store was named, because every command of a
client reads this one.
"""

from __future__ import annotations

import os
from pathlib import Path

from squall.api.errors import UsageError
from squall.cluster.client import local_datacenter
from squall.cluster.client.access import (
    CREDENTIAL,
    AccessOptions,
    ClusterAccess,
    client_secrets,
    cluster_id,
    dns_server,
    file_settings,
    given_addresses,
    link_tls,
    secret_lines,
)


def client_access(options: AccessOptions, *, comes_first: bool = False) -> ClusterAccess:
    """With `comes_first` the caller may name an SQLite store that no agent has opened yet."""
    options = local_datacenter.resolved(options)
    loaded = file_settings()
    settings = loaded.cluster
    url = store_url(options.store, options.to)
    cluster = cluster_id(options.cluster, settings)
    # Without a store, a missing address is reported before a missing secret.
    addresses = () if url else given_addresses(options.to, "--to", settings)
    lines = [options.secret] if options.secret else secret_lines(options.secret_file, settings)
    if url:
        return _store_access(url, store_prefix(options.prefix), lines, cluster, comes_first)
    return ClusterAccess(
        addresses,
        client_secrets(lines),
        cluster,
        tls=link_tls(loaded.tls),
        dns_server=dns_server(settings),
    )


def store_url(store: str | None, to: str | None = None) -> str:
    """The store of `--store` or SQUALL_STORE; empty if managers are named instead."""
    if store and to:
        raise UsageError("--store and --to: a run goes through a store or to managers; choose one")
    if store or to:
        return store or ""
    found = os.environ.get("SQUALL_STORE", "")
    if found and os.environ.get("SQUALL_TO"):
        raise UsageError("SQUALL_STORE and SQUALL_TO are both set: choose with --store or --to")
    return found


def store_prefix(prefix: str | None) -> str:
    from squall.store_mode.open_store import DEFAULT_PREFIX

    return prefix or os.environ.get("SQUALL_STORE_PREFIX", "") or DEFAULT_PREFIX


def _store_access(
    url: str, prefix: str, lines: list[str], cluster: str, comes_first: bool
) -> ClusterAccess:
    from squall.store_mode.client_side import StoreRoute
    from squall.store_mode.find_coordinator import LEADER_ADDRESS
    from squall.store_mode.open_store import check_url
    from squall.store_mode.secret_check import proof_of

    path = check_url(url).removeprefix("sqlite:///")
    if path != url and not comes_first and not Path(path).is_file():
        raise UsageError(f"--store {url}: there is no such file: no agent was ever there")
    proofs = tuple(proof_of(each, cluster) for each in lines if not each.startswith(CREDENTIAL))
    place = StoreRoute(url, prefix, proofs)
    return ClusterAccess((LEADER_ADDRESS,), client_secrets(lines), cluster, place)
