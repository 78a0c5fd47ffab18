"""The files of a data directory: its owner record, its checkpoints, and the content of the
log's records. The log's own format is in `wal`. Start with `directory_owner`.
"""
