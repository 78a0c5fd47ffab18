"""A queue over a store: tickets in order, each finished exactly once.

Start with `plugin`, which producers and workers call. The leader runs `publisher`, which moves
tickets from producers to workers in `publication_order`; `claims` is a ticket in the hands of a
worker; `inspection` is for operators. See docs/coordination/queue.md.
"""
