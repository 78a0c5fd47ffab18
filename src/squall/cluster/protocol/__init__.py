"""The protocol between workers, managers and clients: messages, keys, submissions, bundles,
timers. Start with `messages`. Imports only the wire.
"""
