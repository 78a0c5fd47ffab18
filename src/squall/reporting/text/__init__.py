"""Renders text for a terminal: live lines, summary, explain, one exchange. Start with `summary`."""
