"""`squall coord`: inspects and operates a group of services through its store.

Start with `command`.
"""
