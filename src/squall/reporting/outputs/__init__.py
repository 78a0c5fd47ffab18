"""Delivers results; one module per kind of output. Start with `delivery`."""
