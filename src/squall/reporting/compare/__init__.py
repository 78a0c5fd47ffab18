"""Compares two sides of runs: `squall compare`. Start with `changes`."""
