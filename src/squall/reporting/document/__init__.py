"""Builds, reads, rebuilds and merges results documents. `model` is their typed form."""
