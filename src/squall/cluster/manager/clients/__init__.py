"""The requests of clients and operators to a manager, and the views that they get.
Start with `api`.
"""
