"""The stores that hold the state of a namespace: memory, SQLite, Redis or S3.

Start with `interface`, the contract that all of them keep. `open` turns a URL into a store;
`guarded_store` adds retries and a circuit breaker to any of them. Imports nothing of coordination
but its errors.
"""
