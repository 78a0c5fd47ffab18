"""Helpers of the tests of the page."""
