"""A log in a store that several leaders write at once. Start with `scenario`."""
