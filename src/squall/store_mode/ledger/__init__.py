"""The ledger of store mode: the elected leader keeps its log in a store.

Start with `open_store_ledger`, then `store_ledger`; only `tail` writes slots.
"""
