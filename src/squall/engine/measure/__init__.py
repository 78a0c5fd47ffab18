"""Measures in a core process: executions, its own health, blocked loops, author output.

Start with `recorder`.
"""
