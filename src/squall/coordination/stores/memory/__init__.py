"""The store for one process, and the reference for the others. Start with `store`."""
