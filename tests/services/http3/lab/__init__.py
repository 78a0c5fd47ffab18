"""Servers for the tests of the HTTP/3 client."""
