"""Load on ourselves: admission, retry, circuit breaker. Pure cores, no I/O, no clock."""
