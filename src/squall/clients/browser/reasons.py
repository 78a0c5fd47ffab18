"""Short, stable reasons for the failures of a browser."""

from __future__ import annotations

import re

from playwright.async_api import Error

_MOST_CHARACTERS = 100
# How Chromium names what went wrong on the network (net/base/net_error_list.h).
_NET_ERROR = re.compile(r"net::ERR_([A-Z0-9_]+)")
_REASONS = {
    "CONNECTION_REFUSED": "connection refused",
    "CONNECTION_RESET": "connection reset",
    "CONNECTION_CLOSED": "connection closed before a response",
    "EMPTY_RESPONSE": "connection closed before a response",
    "NAME_NOT_RESOLVED": "name not resolved",
    "CONNECTION_TIMED_OUT": "connection timed out",
    "CERT_AUTHORITY_INVALID": "TLS: certificate verify failed; use --insecure",
    "CERT_COMMON_NAME_INVALID": "TLS: certificate verify failed; use --insecure",
}


def page_reason(error: Error) -> str:
    """The key under which a failed call is counted: without addresses and call logs."""
    message = error.message
    found = _NET_ERROR.search(message)
    if found is not None:
        return _REASONS.get(found[1], found[1].replace("_", " ").lower())
    if "has been closed" in message or "crashed" in message:
        return "the page or the browser ended"
    first = message.splitlines()[0] if message else "failed"
    # "Page.click: Error: strict mode violation: ..."
    return first.partition(": ")[2][:_MOST_CHARACTERS] or first[:_MOST_CHARACTERS]
