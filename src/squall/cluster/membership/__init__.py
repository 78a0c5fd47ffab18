"""Who is here, who is probably dead, how far away: SWIM with Lifeguard, gossip and coordinates.

`core.MembershipCore` is one member's part of the protocol. It is pure: `handle(event, now)` and
`tick(now)` return effects, `deadline()` says when it wants the next tick. A driver owns the socket,
the clock and the random source. Start with `effects`, then `core`. docs/membership.md explains the
states and the numbers.

What it says is advice. Nothing here decides that an attempt is lost, that a primary is gone or that
load may start again (R4, R5). Imports only the wire and the runtime.
"""
