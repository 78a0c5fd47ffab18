"""Live outputs."""
