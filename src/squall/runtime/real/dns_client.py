"""Asks DNS servers for A, AAAA and SRV records, with dnspython. Only `resolver` imports it."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import dns.asyncresolver
import dns.exception
import dns.rdatatype
import dns.resolver
from dns.rdatatype import RdataType

from squall.runtime.addresses import DNS, SRV, shown_address
from squall.runtime.interfaces import Address, Resolved, ResolvedTarget

LIFETIME_S = 5.0
"""Above the time of a whole lookup, which the caller bounds."""


class DNSProblem(Exception):
    """Why there is no answer; `ttl_s` is how long that holds, if the server said so."""

    def __init__(self, text: str, ttl_s: float | None = None) -> None:
        super().__init__(text)
        self.ttl_s = ttl_s


class NoRecord(DNSProblem):
    """The name exists and has no record of the wanted kind."""


class DNSClient:
    """Asks `server`, or those of /etc/resolv.conf, with its search domains."""

    def __init__(self, server: Address | None) -> None:
        try:
            self._resolver = dns.asyncresolver.Resolver(configure=server is None)
        except dns.resolver.NoResolverConfiguration:
            raise DNSProblem("/etc/resolv.conf names no DNS server") from None
        if server is not None:
            self._resolver.nameservers = [server[0]]
            self._resolver.port = server[1]

    @property
    def asked(self) -> str:
        servers = self._resolver.nameservers
        return ", ".join(shown_address((str(each), self._resolver.port)) for each in servers)

    async def resolve(self, name: Address) -> Resolved:
        host, port = name
        if host.startswith(SRV):
            return await self._services(host.removeprefix(SRV))
        return await self._hosts(host.removeprefix(DNS), port)

    async def _services(self, name: str) -> Resolved:
        """SRV records name hosts; the addresses of these are looked up too."""
        records, ttl_s = await self._ask(name, dns.rdatatype.SRV)
        # The target "." says that the service is not offered there.
        records = [each for each in records if str(each.target) != "."]
        if not records:
            raise DNSProblem("the service is not offered there")
        found = await asyncio.gather(
            *(self._hosts(str(each.target), each.port) for each in records), return_exceptions=True
        )
        targets: list[ResolvedTarget] = []
        for record, hosts in zip(records, found, strict=True):
            if isinstance(hosts, Resolved):
                ttl_s = min(ttl_s, hosts.ttl_s)
                rank = (record.priority, record.weight)
                targets += [ResolvedTarget(each.address, *rank) for each in hosts.targets]
        if not targets:
            why = next(each for each in found if isinstance(each, BaseException))
            if isinstance(why, DNSProblem):
                raise DNSProblem(f"its host {records[0].target}: {why}", why.ttl_s)
            raise why
        return Resolved(tuple(targets), ttl_s)

    async def _hosts(self, name: str, port: int) -> Resolved:
        """The A and AAAA records. One of them is enough: many servers fail for the other."""
        found = await asyncio.gather(
            self._ask(name, dns.rdatatype.A),
            self._ask(name, dns.rdatatype.AAAA),
            return_exceptions=True,
        )
        answers = [each for each in found if not isinstance(each, BaseException)]
        if not answers:
            problems = [each for each in found if isinstance(each, BaseException)]
            raise next((each for each in problems if not isinstance(each, NoRecord)), problems[0])
        targets = [
            ResolvedTarget((str(each.address), port)) for records, _ in answers for each in records
        ]
        return Resolved(tuple(targets), min(ttl_s for _, ttl_s in answers))

    async def _ask(self, name: str, kind: RdataType) -> tuple[list[Any], float]:
        """The records and their TTL."""
        try:
            answer = await self._resolver.resolve(name, kind, search=True, lifetime=LIFETIME_S)
        except dns.resolver.NXDOMAIN as error:
            raise DNSProblem("no such name", _negative_ttl_s(error)) from None
        except dns.resolver.NoAnswer:
            wanted = "SRV" if kind == dns.rdatatype.SRV else "A or AAAA"
            raise NoRecord(f"it has no {wanted} record") from None
        except dns.exception.Timeout:
            raise TimeoutError from None
        except dns.resolver.NoNameservers as error:
            raise DNSProblem(_server_error(error), 0.0) from None
        except dns.exception.DNSException as error:
            raise DNSProblem(" ".join(str(error).split()), 0.0) from None
        return list(cast("Any", answer)), float(answer.chaining_result.minimum_ttl)


def _negative_ttl_s(error: dns.resolver.NXDOMAIN) -> float | None:
    """The zone's SOA record says how long a name does not exist (RFC 2308)."""
    responses = cast("Any", error.responses()).values()
    found = [
        float(min(records.ttl, record.minimum))
        for response in responses
        for records in response.authority
        if records.rdtype == dns.rdatatype.SOA
        for record in records
    ]
    return min(found, default=None)


def _server_error(error: dns.resolver.NoNameservers) -> str:
    """Such as "the DNS server answers SERVFAIL"."""
    errors = cast("Any", error).kwargs.get("errors") or [("", False, 0, "nothing")]
    return f"the DNS server answers {errors[-1][3]}"
