"""The write-ahead log of one member: `log.Wal` writes, `reader` reads, `scan` judges."""
