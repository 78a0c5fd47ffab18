"""Adds up the reports of a run: rows, workflows, generator health, windows. Start with `run`."""
