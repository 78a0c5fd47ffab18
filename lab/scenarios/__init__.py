"""Scenarios for the simulation: real programs on simulated machines, with faults.

`registry` lists them; `campaign` runs many seeds of one. A scenario may import any part of Squall
except the command line.
"""
