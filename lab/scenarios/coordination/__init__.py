"""Members that coordinate through a store, under faults. Start with `scenario`."""
