"""The live screen: drawn from snapshots and a manifest, never from the engine.

`state` keeps what snapshots brought, `pages` turns it into lines for a size, `app` puts the lines
on a terminal. Only `app` imports Textual.
"""
