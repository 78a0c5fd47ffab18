"""The disk of a simulated machine. Start with `disk`; `files` says what is durable."""
