"""The runtime's network over a store: envelopes in mailboxes. Start with `network`."""
