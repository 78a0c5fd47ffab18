"""Virtual users: the generated loop and everything that it calls. Start with `share`."""
