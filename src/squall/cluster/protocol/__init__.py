"""The protocol between workers, managers and clients: messages, keys, submissions, bundles,
timers. Start with `messages`; `submission_limits` checks what clients submit. Imports only the
wire.
"""
