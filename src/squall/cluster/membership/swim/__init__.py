"""The parts of the core: each keeps one concern, and all share one `Shared` object.

`transitions` alone changes the state of a peer. `probes` pings peers, `suspicions` counts the
members that confirm a suspicion and waits for its refutation, `outsiders` probes peers that are not
present, `own_record` refutes suspicions of this member, `gossip_queue` and `anti_entropy` spread
records. `core.MembershipCore` joins them; nothing else imports this folder.
"""
