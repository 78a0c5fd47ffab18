"""Store mode: agents that communicate through a store and need no network between them.

Start with `node`: an agent is a worker, and a manager while elected. `ledger` keeps the log in
the store, `transport` carries messages through it, `schedules` runs jobs at stated times.
"""
