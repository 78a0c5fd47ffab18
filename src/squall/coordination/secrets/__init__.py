"""Signing secrets and signatures over records. `sources` reads secrets, `keyrings` opens them at
the start of a member, `signing` signs and verifies.
"""
