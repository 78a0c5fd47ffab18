"""Turns the outcome of a run into text and files."""
