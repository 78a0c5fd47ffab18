"""The failure of an output, in words for its user. The line that reports it names the output."""

from __future__ import annotations


class OutputError(Exception):
    """Why an output did not take the results; no message has a secret in it."""
