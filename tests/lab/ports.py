"""Ports for servers of a test that bind them later, or again after a restart."""

from __future__ import annotations

import random
import socket
import threading

_LOCK = threading.Lock()
_given: set[int] = set()


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
            _given.add(port)
            found.append(port)
    return found
