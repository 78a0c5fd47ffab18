"""The HTTP/1.1 client: prepared requests, one connection per virtual user."""

from squall.clients.http.client import HTTPClient
from squall.clients.http.connect import ConnectLimiter
from squall.clients.http.shared import Exchange, HTTPCounters, HTTPShared

__all__ = [
    "ConnectLimiter",
    "Exchange",
    "HTTPClient",
    "HTTPCounters",
    "HTTPShared",
]
