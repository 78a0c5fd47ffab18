"""The pages of the live screen. Start with `layout`."""
