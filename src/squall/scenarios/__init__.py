"""Scenarios for the simulation: real programs on simulated machines, with faults.

`registry` names them all; `campaign` runs many seeds. A scenario may import any part of
Squall except the command line.
"""
