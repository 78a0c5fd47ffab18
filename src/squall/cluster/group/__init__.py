"""The replicated group of managers: its log, members, handshake, commits and blob transfers.

Start with `open_log`; `change_plan` plans how a group grows and shrinks. `handshake` compares the
settings of two managers inside the handshake of their link (`cluster.wire.links.handshake`). The
replication itself is in `cluster.ledger.group_member`, which knows a log but no managers; this
folder is its user. The packages `squall.cluster.manager` and `squall.store_mode` import it.
"""
