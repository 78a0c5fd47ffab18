"""Fixtures that every test may ask for by name."""

from target_fixture import target

__all__ = ["target"]
