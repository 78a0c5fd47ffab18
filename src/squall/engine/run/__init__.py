"""Runs a file on one machine. Start with `local_run`, then `controller`."""
