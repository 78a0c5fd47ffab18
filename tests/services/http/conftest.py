"""Fixtures for tests of the HTTP client against real servers."""

from http_servers import nginx

__all__ = ["nginx"]
