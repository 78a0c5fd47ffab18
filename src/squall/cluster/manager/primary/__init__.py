"""State and rules of the leading manager, which director and sessions share: its volatile
state, the rules of placement, leases and queue order, and the effects. Start with `volatile_state`.
Imports no other part of the manager.
"""
