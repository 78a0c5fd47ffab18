"""One member of a group of one, three or five: runs the pure `replica` on disk and network.

Start with `group_ledger`, which performs the effects of the core (the `replica` package);
`open_group_ledger` builds it from a data directory. It replicates a log for any state machine;
what a group of managers adds to it is in `cluster.group`.
"""
