"""The store in one SQLite file. Start with `store`."""
