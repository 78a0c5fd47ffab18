"""The write-ahead log of one member: `log.Wal` writes it, `reader` reads it, `scan` finds the
valid blocks of a segment and tells a torn end from damage, `recovery` restores the log after a
crash.

Start with `log`. `squall.cluster.ledger` and the `squall wal` commands import it; the ledger
in a store imports only its errors.
"""
