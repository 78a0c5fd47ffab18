"""Mutants: known bugs, each switched on by name, that the scenarios must find."""
