"""Turns the author's file into a plan: file, program, workflow plans, layers.

Start with `program`.
"""
