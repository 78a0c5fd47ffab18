"""Where the state of a group lives: memory, SQLite, Redis or S3 behind one interface."""
