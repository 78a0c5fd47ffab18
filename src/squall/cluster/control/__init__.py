"""How a node protects itself from load: admission, rate limits, overload detection, and the
health and deadline rules that a manager applies to its workers.

Everything but `execution` is pure: no I/O, no clock, no randomness of its own. Managers
and the tests import it. Start with `admission`; docs/control.md has the rules.
"""
