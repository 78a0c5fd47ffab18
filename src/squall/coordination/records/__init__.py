"""The records of a namespace: their schemas, their keys, and how they are encoded and signed. Start
with `schemas`.
"""
