"""A load test under pytest."""

import squall
from parallel import Shop


def test_checkout_is_fast() -> None:
    result = squall.run(Shop, vus=5, duration="3s")
    assert result.passed and result.verdict == "VALID"
    assert result.step("pay").p(95) < 0.5
