"""Helpers of the tests of message brokers."""
