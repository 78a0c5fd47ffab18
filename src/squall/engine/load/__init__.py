"""Load profiles: resolves them, splits them over cores and shares, and drives the starts.

Start with `profile`, then `drivers`.
"""
