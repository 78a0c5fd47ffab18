"""Servers for the tests of the HTTP/2 client."""
