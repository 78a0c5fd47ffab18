"""Fixtures that every test may ask for by name."""

import signal
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from target_fixture import target

__all__ = ["target"]

# A busy machine must not make a property false: it says what holds, not how fast.
settings.register_profile(
    "squall",
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
settings.load_profile("squall")

# A shell that starts the tests in the background lets them ignore Ctrl-C, and with them
# every command that they start.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

_TESTS = Path(__file__).resolve().parent
REAL_PROCESSES = tuple(_TESTS / name for name in ("cluster", "store_mode", "services", "runs"))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Real processes and servers, up to eight with timers of a few tenths of a second, on two
    shared cores: what fails there is tried again, and shown as such (`R`). Unit tests,
    properties and the simulation are never tried again."""
    for item in items:
        if any(item.path.is_relative_to(folder) for folder in REAL_PROCESSES):
            item.add_marker(pytest.mark.flaky(reruns=2))
            if item.get_closest_marker("timeout") is None:
                item.add_marker(pytest.mark.timeout(300))
