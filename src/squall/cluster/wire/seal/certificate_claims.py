"""Role claims in the certificates of mutual TLS.

An alternative name `URI:squall:<role>` or `URI:squall:<role>:<name>` is a claim that the
cluster's authority signed; the roles are node (managers), worker and client. The name is the
node id, or the principal of a client. A peer must be what its certificate claims, so a holder
of the secret cannot act as another role or node.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from squall.cluster.wire.roles import Role
from squall.cluster.wire.seal.keyring import Identity

ClaimCheck = Callable[[Sequence[str], Identity], str]
"""(names in the certificate, identity that the peer proved with its secret) -> objection,
or "" if there is none."""

_SCHEME = "URI:squall:"


def certificate_claims(names: Sequence[str], peer: Identity) -> str:
    """Objects unless one claim fits the role and the name of the peer."""
    claims = [name.removeprefix(_SCHEME) for name in names if name.startswith(_SCHEME)]
    if not claims:
        return "its certificate claims no role"
    holder = peer.name if peer.role is Role.CLIENT else peer.node
    for claim in claims:
        role, _, name = claim.partition(":")
        if role == peer.role.label and name in ("", holder):
            return ""
    return (
        f"its certificate claims {', '.join(claims)}, and it connects as {peer.role.label} {holder}"
    )
