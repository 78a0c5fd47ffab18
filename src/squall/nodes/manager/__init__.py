"""The manager: plans, places, watches and merges; the log decides."""
