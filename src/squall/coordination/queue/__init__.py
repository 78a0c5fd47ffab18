"""Tickets in order, each finished exactly once. See docs/coordination/queue.md."""
