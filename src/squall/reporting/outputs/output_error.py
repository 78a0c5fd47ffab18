"""The failure of an output, as text for the user. The line that reports it names the output."""

from __future__ import annotations


class OutputError(Exception):
    """An output could not deliver the results. The text never contains a secret."""
