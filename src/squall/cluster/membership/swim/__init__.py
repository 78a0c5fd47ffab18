"""The parts of the core: each keeps one concern, and all share one `Shared` object.

`transitions` alone changes the state of a peer. `probes` asks, `suspicions` waits for refutations,
`outsiders` looks after those that are not present, `own_record` answers what is said of this member
itself, `gossip_queue` and `anti_entropy` spread records. `core.MembershipCore` joins them; nothing
else imports this folder.
"""
