"""Secrets, keys, ciphers, replay protection and certificate claims of the wire.

Start with `ciphers`, which encrypts frames; `keyring` holds what one boot needs. The wire, the
commands that read secrets and `group/sealed_secrets` import this folder.
"""
