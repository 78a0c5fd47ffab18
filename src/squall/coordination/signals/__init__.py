"""Signals between members: send, receive, wait, handle.

Start with `member_signals`, which is what callers use. A signal travels from `sender` into the
stream of the receiver's inbox; `receiver` reads it there, `acceptance` judges it, `matching` finds
its consumer, and one batch of writes marks it delivered. Stands on members, records and stores.
"""
