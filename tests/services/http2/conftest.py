"""Fixtures for tests of the HTTP/2 client against real servers."""

from tests.services.http2.lab.servers import real

__all__ = ["real"]
