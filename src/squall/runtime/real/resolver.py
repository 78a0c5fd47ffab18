"""`interfaces.Resolver` on a DNS server, or on the system's resolver.

The package dnspython (the extra `dns`) asks DNS servers. Without it "dns:" names go through the
system's resolver, which knows no TTL, and "srv:" names cannot be looked up.
"""

from __future__ import annotations

import asyncio
import importlib.util
import socket
from typing import TYPE_CHECKING

from squall.runtime.addresses import DNS, SRV, shown_address
from squall.runtime.interfaces import Address, NotResolved, Resolved, ResolvedTarget

if TYPE_CHECKING:
    from squall.runtime.real.dns_client import DNSClient

LOOKUP_S = 2.0
"""The longest lookup: a worker whose managers are gone has a lease of 15 s to find others."""
UNKNOWN_TTL_S = 5.0
"""Of answers without a TTL, from the system's resolver, and of errors without one."""
NEEDS_PACKAGE = "asking a DNS server needs the package dnspython: run pip install dnspython"


class RealResolver:
    """Asks `server`, or the servers of /etc/resolv.conf."""

    def __init__(self, server: Address | None = None) -> None:
        self._server = server
        # Made at the first lookup: most processes look up nothing.
        self._client: DNSClient | None = None

    async def resolve(self, name: Address) -> Resolved:
        if importlib.util.find_spec("dns") is None:
            return await self._by_system(name)
        from squall.runtime.real.dns_client import DNSClient, DNSProblem

        try:
            async with asyncio.timeout(LOOKUP_S):
                if self._client is None:
                    self._client = DNSClient(self._server)
                return await self._client.resolve(name)
        except TimeoutError:
            problem, ttl_s = f"no answer in {LOOKUP_S:g} s", UNKNOWN_TTL_S
        except DNSProblem as error:
            problem = str(error)
            ttl_s = UNKNOWN_TTL_S if error.ttl_s is None else error.ttl_s
        asked = f"; asked {self._client.asked}" if self._client is not None else ""
        raise NotResolved(f"{shown_address(name)}: {problem}{asked}", ttl_s)

    async def _by_system(self, name: Address) -> Resolved:
        host, port = name
        if host.startswith(SRV) or self._server is not None:
            raise NotResolved(f"{shown_address(name)}: {NEEDS_PACKAGE}", UNKNOWN_TTL_S)
        try:
            async with asyncio.timeout(LOOKUP_S):
                found = await asyncio.get_running_loop().getaddrinfo(
                    host.removeprefix(DNS), port, type=socket.SOCK_STREAM
                )
        except TimeoutError:
            why = f"no answer in {LOOKUP_S:g} s"
        except socket.gaierror as error:
            why = error.strerror or "no such name"
        else:
            targets = dict.fromkeys(ResolvedTarget((str(where[0]), port)) for *_, where in found)
            return Resolved(tuple(targets), UNKNOWN_TTL_S)
        raise NotResolved(
            f"{shown_address(name)}: {why}; asked the system's resolver", UNKNOWN_TTL_S
        )
