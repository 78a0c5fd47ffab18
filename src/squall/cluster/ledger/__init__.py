"""The durable, ordered log of commands of a control group (R1), and the state they produce.

Start with `interface`, which other folders import. `group_member` implements it with the
pure `replica`, the write-ahead log (`wal`), the other `files` of a data directory, and
`blobs`. `recover` creates a new group from one directory after a quorum is lost.
"""
