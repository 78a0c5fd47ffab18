"""Fixtures that every test may ask for by name."""

import gc
import signal
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests.lab.durations import Durations, computes
from tests.lab.machine import measure
from tests.lab.target import target

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
# `nohup` does the same with the end of the terminal.
signal.signal(signal.SIGHUP, signal.SIG_DFL)

_TESTS = Path(__file__).resolve().parent
STORE_CONTRACT = _TESTS / "services" / "coordination" / "stores"
GATE_STORE = "redis"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--nightly", action="store_true", help="run also what only `make nightly` has time for"
    )


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(Durations())


def pytest_runtest_setup(item: pytest.Item) -> None:
    if not computes(item.nodeid):
        measure()


def pytest_runtest_logstart(location: tuple[str, int | None, str]) -> None:
    """Before each file of tests, takes all that is alive out of the sight of the collector: each
    simulated world collects at its end, and would walk again over all tests and over what the
    former ones left, a million objects in the end."""
    if location[0] != _Collected.file:
        _Collected.file = location[0]
        gc.collect()
        gc.freeze()


class _Collected:
    """The file of tests before which garbage was collected last."""

    file = ""


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        if _is_on_another_store(item):
            item.add_marker(pytest.mark.nightly)
    if config.getoption("--nightly"):
        return
    left = [item for item in items if item.get_closest_marker("nightly")]
    if left:
        config.hook.pytest_deselected(items=left)
        items[:] = [item for item in items if not item.get_closest_marker("nightly")]


def _is_on_another_store(item: pytest.Item) -> bool:
    """The contract of the stores is tested on all of them. What stands above the store
    interface cannot tell them apart, so the gate runs it on one real store; the unit tests
    run it on memory, in virtual time."""
    call = getattr(item, "callspec", None)
    if call is None or item.path.is_relative_to(STORE_CONTRACT):
        return False
    kind = call.params.get("place", GATE_STORE)
    return isinstance(kind, str) and kind != GATE_STORE
