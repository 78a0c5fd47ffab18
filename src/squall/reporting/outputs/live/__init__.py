"""Live outputs: fed each second while a run goes on, one small file per backend.

`feed` takes the snapshots of a run, `delivery` gives each output a thread, `metrics` is the one
model of names, units and labels that every backend spells in its own way.
"""
