"""How addresses are written: HOST:PORT, dns:NAME[:PORT], srv:NAME."""

from __future__ import annotations

import pytest

from squall.runtime.addresses import address_fault, address_in, is_name, shown_address
from squall.runtime.interfaces import Address


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("10.0.0.1:7400", ("10.0.0.1", 7400)),
        ("m1.example:7401", ("m1.example", 7401)),
        ("dns:managers.example:7500", ("dns:managers.example", 7500)),
        ("dns:managers.example", ("dns:managers.example", 7400)),
        ("dns:managers", ("dns:managers", 7400)),
        ("srv:_squall._tcp.example", ("srv:_squall._tcp.example", 0)),
        ("srv:_squall._tcp.example.", ("srv:_squall._tcp.example.", 0)),
        # Agents behind a store have port 0 in the hints of other nodes.
        ("leader:0", ("leader", 0)),
    ],
)
def test_a_written_address_is_read_and_shown_as_it_was_written(text: str, address: Address) -> None:
    assert address_in(text) == address
    assert address_in(shown_address(address)) == address
    assert is_name(address) == text.startswith(("dns:", "srv:"))
    assert address[1] == 0 or address_fault(text) == ""


def test_an_address_in_brackets_is_one_of_ipv6() -> None:
    assert address_in("[fd00::1]:7400") == ("fd00::1", 7400)
    assert shown_address(("fd00::1", 7400)) == "fd00::1:7400"
    assert address_in("fd00::1:7400") == ("fd00::1", 7400)


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("", "write HOST:PORT, dns:NAME:PORT or srv:NAME"),
        ("m1", "write HOST:PORT"),
        ("m1:", "write HOST:PORT"),
        ("m1:0", "write HOST:PORT"),
        ("m1:99999", "write HOST:PORT"),
        ("dns:", '"" is not the name of a host'),
        ("dns::7400", '"" is not the name of a host'),
        ("dns:m1.example:port", "write dns:NAME:PORT"),
        ("dns:m1..example:7400", '"m1..example" is not the name of a host'),
        ("dns:10.0.0.1:7400", "that is an address, not a name: write 10.0.0.1:7400"),
        ("srv:", "such as srv:_squall._tcp.example"),
        ("srv:_squall._tcp.example:7400", "has the port: write srv:_squall._tcp.example"),
        ("srv:a b", '"a b" is not the name of a host'),
        (f"dns:{'a' * 64}.example:7400", "is not the name of a host"),
        (f"dns:{'a.' * 130}example:7400", "is not the name of a host"),
    ],
)
def test_a_wrong_address_gets_one_line_that_says_what_to_write(text: str, fault: str) -> None:
    assert fault in address_fault(text)
    assert "\n" not in address_fault(text)
