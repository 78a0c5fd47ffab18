"""The limits of the verdict; `verdict.py` says what each rule means.

They are limits for the generator, never for the system under test.
"""

from __future__ import annotations

import msgspec


class VerdictSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Limits of the rules. Shares are 0 to 1; `degraded` is reached before `invalid`."""

    blocked_degraded_share: float = 0.01
    blocked_invalid_share: float = 0.10

    saturated_cpu: float = 0.95
    saturated_lag_s: float = 0.010
    saturated_degraded_share: float = 0.10
    saturated_invalid_share: float = 0.50
    saturated_least_s: float = 3.0

    lag_degraded_s: float = 0.020
    lag_invalid_s: float = 0.100

    made_invalid_share: float = 0.95

    effect_degraded_share: float = 0.10
    """Of the latency measured: what lateness of the generator may add to it."""
    late_degraded_s: float = 0.010
    """What the scheduler of a shared machine takes from any process: no sign of a generator that
    cannot keep up."""

    users_invalid_share: float = 0.05
    """The same limit as for the load that a lost worker leaves missing."""

    live_after_s: float = 3.0
    """A live verdict judges no shares of a shorter time than this."""
