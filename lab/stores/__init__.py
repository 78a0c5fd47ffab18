"""Stores that fail on purpose. Tests and scenarios put them in front of a real store."""
