"""A connection without a network, and the package `h2` as its server."""
