"""Load on ourselves: admission, retry, circuit breaker. Pure cores, no I/O, no clock.

`execution` and `calls` are the only modules that await; docs/control.md has the rules.
"""
