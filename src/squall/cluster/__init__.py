"""A cluster of managers, workers and clients.

Start with `manager.node` and `worker.node`, which compose the rest: `group` and `ledger` (the
replicated log), `datacenter` (what the log means), `protocol` and `wire` (messages), `control`
(overload), `results`.
"""
