"""Commands: nothing but parsing and calling."""
