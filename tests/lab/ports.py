"""Ports for servers of a test that bind them later, or again after a restart."""

from __future__ import annotations

import random
import socket
import threading

_LOCK = threading.Lock()
_given: dict[int, int] = {}
"""The ports of this process, with the descriptors of their claims."""


def free_ports(count: int) -> list[int]:
    """Below the range from which the kernel takes ports for connections, and each only
    once in this process: a port stays free while its owner is down. Within that range a client
    that tries to connect to a port where nobody listens can even get a connection to itself."""
    found: list[int] = []
    with _LOCK:
        while len(found) < count:
            port = random.randint(20_000, 32_000)
            if port in _given:
                continue
            with socket.socket() as tried:
                try:
                    tried.bind(("127.0.0.1", port))
                except OSError:
                    continue
            claim = _claimed(port)
            if claim is None:
                continue
            _given[port] = claim
            found.append(port)
    return found


def _claimed(port: int) -> int | None:
    """The descriptor that keeps other processes of tests away from this port as long as this one
    lives, also while nothing listens there; None if another one has it. The name is one of the
    kernel's, not of a file."""
    claim = socket.socket(socket.AF_UNIX)
    try:
        claim.bind(f"\0squall-tests-port-{port}")
    except OSError:
        claim.close()
        return None
    return claim.detach()
