"""Lookups against a real DNS server, and without the package that asks one."""

from __future__ import annotations

import asyncio
import importlib.util
from collections.abc import Generator
from typing import Any

import pytest

from squall.runtime.addresses import address_in
from squall.runtime.interfaces import NotResolved, Resolved, ResolvedTarget
from squall.runtime.real.resolver import RealResolver
from tests.lab.dns_server import DNSServer, dns_server
from tests.lab.ports import free_ports


@pytest.fixture(scope="module")
def server() -> Generator[DNSServer]:
    with dns_server() as made:
        made.publish(
            "host-record=m1.test,10.0.0.1,fd00::1,40",
            "host-record=m2.test,10.0.0.2,20",
            "host-record=all.test,10.0.0.1,30",
            "host-record=all.test,10.0.0.2,30",
            "srv-host=_squall._tcp.test,m1.test,7401,1,5",
            "srv-host=_squall._tcp.test,m2.test,7402,2,9",
            "srv-host=_half._tcp.test,gone.test,7401",
            "srv-host=_half._tcp.test,m2.test,7402",
            "srv-host=_dead._tcp.test,gone.test,7401",
            "srv-host=_none._tcp.test,",
            "cname=alias.test,m2.test",
            "txt-record=text.test,nothing",
            ttl_s=50,
        )
        yield made


def looked_up(server: DNSServer | None, text: str) -> Resolved:
    at = address_in(server.address) if server is not None else None
    name = address_in(text)
    assert name is not None
    return asyncio.run(RealResolver(at).resolve(name))


def test_a_name_stands_for_its_addresses_of_both_families(server: DNSServer) -> None:
    found = looked_up(server, "dns:m1.test:7500")
    assert set(found.targets) == {
        ResolvedTarget(("10.0.0.1", 7500)),
        ResolvedTarget(("fd00::1", 7500)),
    }
    assert found.ttl_s == 40.0
    assert {each.address for each in looked_up(server, "dns:alias.test").targets} == {
        ("10.0.0.2", 7400)
    }


def test_a_service_names_hosts_and_their_ports(server: DNSServer) -> None:
    found = looked_up(server, "srv:_squall._tcp.test")
    assert set(found.targets) == {
        ResolvedTarget(("10.0.0.1", 7401), 1, 5),
        ResolvedTarget(("fd00::1", 7401), 1, 5),
        ResolvedTarget(("10.0.0.2", 7402), 2, 9),
    }
    # The shortest of its own TTL and those of its hosts.
    assert found.ttl_s == 20.0


def test_a_service_with_a_host_that_is_gone_has_the_others(server: DNSServer) -> None:
    (target,) = looked_up(server, "srv:_half._tcp.test").targets
    assert target.address == ("10.0.0.2", 7402)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("dns:missing.test:7400", "dns:missing.test:7400: no such name"),
        ("srv:_missing._tcp.test", "srv:_missing._tcp.test: no such name"),
        ("srv:m1.test", "srv:m1.test: it has no SRV record"),
        ("dns:text.test:7400", "dns:text.test:7400: it has no A or AAAA record"),
        ("srv:_dead._tcp.test", "srv:_dead._tcp.test: its host gone.test.: no such name"),
        ("srv:_none._tcp.test", "srv:_none._tcp.test: the service is not offered there"),
        (
            "dns:elsewhere.example:7400",
            "dns:elsewhere.example:7400: the DNS server answers REFUSED",
        ),
    ],
)
def test_what_fails_is_said_in_one_line_with_the_server(
    server: DNSServer, text: str, why: str
) -> None:
    with pytest.raises(NotResolved) as failed:
        looked_up(server, text)
    assert str(failed.value) == f"{why}; asked {server.address}"


def test_a_server_that_does_not_answer_is_named(server: DNSServer) -> None:
    (port,) = free_ports(1)
    resolver = RealResolver(("127.0.0.1", port))
    with pytest.raises(NotResolved, match=rf"no answer in 2 s; asked 127\.0\.0\.1:{port}$"):
        asyncio.run(resolver.resolve(("dns:m1.test", 7400)))


def test_without_the_package_names_go_to_the_system_and_services_say_what_is_missing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def spec(name: str, *rest: Any) -> None:
        assert name == "dns"

    monkeypatch.setattr(importlib.util, "find_spec", spec)
    assert ResolvedTarget(("127.0.0.1", 7400)) in looked_up(None, "dns:localhost:7400").targets
    with pytest.raises(NotResolved) as failed:
        looked_up(None, "srv:_squall._tcp.test")
    assert str(failed.value) == (
        "srv:_squall._tcp.test: asking a DNS server needs the package dnspython: "
        "run pip install dnspython"
    )
