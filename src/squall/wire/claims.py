"""What a certificate says of its holder, where links run inside mutual TLS.

An alternative name of the form `URI:squall:<role>` or `URI:squall:<role>:<node id>` is a
claim that the cluster's authority signed. With claims required, a peer must be what its
certificate says: then not even a holder of the secret can act as another role or node.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from squall.wire.keyring import Identity

ClaimCheck = Callable[[Sequence[str], Identity], str]
"""(names of the certificate, what the peer proved with its secret) -> objection or ""."""

_SCHEME = "URI:squall:"


def certificate_claims(names: Sequence[str], peer: Identity) -> str:
    """A `ClaimCheck` that demands a matching claim."""
    claims = [name.removeprefix(_SCHEME) for name in names if name.startswith(_SCHEME)]
    if not claims:
        return "its certificate claims no role"
    for claim in claims:
        role, _, node = claim.partition(":")
        if role == peer.role.label and node in ("", peer.node):
            return ""
    return f"its certificate does not claim to be {peer.role.label} {peer.node}"
