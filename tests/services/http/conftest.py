"""Fixtures for tests of the HTTP client against real servers."""

from tests.services.http.lab.servers import nginx

__all__ = ["nginx"]
