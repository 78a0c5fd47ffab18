"""Leader election: the pure state machine (`core`), its driver (`leadership`), and the work that
the leader runs (`term`). Start with `core`.
"""
