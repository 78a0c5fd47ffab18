"""The live screen: drawn from snapshots and a manifest, never from the engine.

`state.py` remembers what was seen, `pages.py` turns it into lines for a size, `app.py`
puts the lines on a terminal. Only `app.py` imports Textual.
"""
