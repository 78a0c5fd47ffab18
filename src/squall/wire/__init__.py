"""How nodes talk: frames, seal, message catalogue, connections. Only plain data."""
