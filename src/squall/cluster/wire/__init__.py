"""How the processes of a cluster talk: sealed frames, the message catalogue, links.

Everything in `squall.cluster` above it may import it; it imports the runtime alone. Start with
`links` (connections) and `messages`; docs/wire.md has the protocol.
"""
