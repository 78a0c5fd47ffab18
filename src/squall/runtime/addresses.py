"""How addresses of managers and gates are written.

    HOST:PORT         one node; the host may be a name that the system resolves
    dns:NAME[:PORT]   every address of the name (A and AAAA records) is a node
    srv:NAME          every SRV record of the name is a node, with its port

The last two become an `Address` whose host keeps the prefix, so that they fit wherever an address
does. `squall.runtime.names` finds out what stands behind them.
"""

from __future__ import annotations

import ipaddress
import re

from squall.runtime.interfaces import Address

DNS, SRV = "dns:", "srv:"
DEFAULT_PORT = 7400
"""Of a "dns:" name without a port: the port of the documentation's examples."""
NAME_MAX = 253
_LABEL = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?")
_FORMS = "write HOST:PORT, dns:NAME:PORT or srv:NAME, such as 127.0.0.1:7400"


def is_name(address: Address) -> bool:
    """Whether it stands for several addresses, which change."""
    return address[0].startswith((DNS, SRV))


def shown_address(address: Address) -> str:
    """As it was written: `address_in` reads it back."""
    host, port = address
    return host if host.startswith(SRV) else f"{host}:{port}"


def address_in(text: str) -> Address | None:
    """Reads what a node sent; None if it is no address. Agents behind a store have port 0."""
    host, port = _parsed(text)
    return (host, port) if host and 0 <= port < 65536 else None


def address_fault(text: str) -> str:
    """What is wrong with the address that a user wrote, and what to write; "" if nothing is."""
    if text.startswith((DNS, SRV)):
        return _name_fault(text)
    host, port = _parsed(text)
    return "" if host and 0 < port < 65536 else _FORMS


def _parsed(text: str) -> Address:
    """Port -1: there is none, or it is no number."""
    if text.startswith(SRV):
        return text, 0
    host, colon, port = text.rpartition(":")
    if text.startswith(DNS) and host == DNS.rstrip(":"):
        return text, DEFAULT_PORT
    usable = bool(colon) and port.isascii() and port.isdecimal()
    return host.removeprefix("[").removesuffix("]"), int(port) if usable else -1


def _name_fault(text: str) -> str:
    kind = text[:4]
    host, port = _parsed(text)
    name = host[len(kind) :]
    if kind == SRV and ":" in name:
        return f"an SRV record has the port: write {SRV}{name.partition(':')[0] or 'NAME'}"
    if kind == DNS and not 0 < port < 65536:
        return "write dns:NAME:PORT, such as dns:managers.example:7400"
    if is_numeric(name):
        return f"that is an address, not a name: write {name}:{port or 'PORT'}"
    labels = name.removesuffix(".").split(".")
    if len(name) > NAME_MAX or not all(_LABEL.fullmatch(each) for each in labels):
        such = "dns:managers.example:7400" if kind == DNS else "srv:_squall._tcp.example"
        return f'"{name}" is not the name of a host: write it such as {such}'
    return ""


def is_numeric(host: str) -> bool:
    try:
        ipaddress.ip_address(host.removeprefix("[").removesuffix("]"))
    except ValueError:
        return False
    return True
