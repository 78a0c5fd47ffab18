"""What every control group has, whatever its state machine: log, members, handshake, commits, blob
transfers, job leaders with their telemetry, requests of clients and operators.

Start with `member`, which composes these parts; `job_tables` says what they read of the state
machine. `change_plan` plans how a group grows and shrinks. `handshake` compares the settings of two
members inside the handshake of their link (`cluster.wire.links.handshake`). The replication itself
is in `cluster.ledger.group_member`, which knows a log but no members' duties; this folder is its
user. The packages `squall.cluster.manager` and `squall.store_mode` import it.
"""
