"""Clients of message brokers against real ones."""
