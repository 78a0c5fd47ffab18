"""Sealed links and the conversations on them.

Start with `peer` (dials) and `endpoint` (listens); both drive a `channel` over a `link`.
`handshake` authenticates the two processes of a link; `cluster.group.handshake` is what managers
present in it.
"""
