"""Blob stores of one node: on disk for a manager, in memory for a worker or a client.

`on_disk.BlobStore.collect` deletes what the state no longer refers to.
"""
