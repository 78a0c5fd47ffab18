"""A replicated group under every fault that it promises to survive.

Start with `scenario`; `checks` verifies the promises.
"""
