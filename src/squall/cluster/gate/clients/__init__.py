"""The requests of clients to a gate, and the views that they get. They are the same messages as a
manager's, so that every command works against a gate. Start with `api`.
"""
