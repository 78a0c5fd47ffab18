"""Protocol clients that make the load, one folder per protocol."""
