"""A light simulator for many members, and what is measured in it.

`event_queue` runs the pure cores of membership on one queue of events: no tasks, no sockets, so
500 members fit. `plain_swim` is the protocol it is compared with. `python -m
lab.membership.figures` prints the tables of docs/membership.md.
"""
