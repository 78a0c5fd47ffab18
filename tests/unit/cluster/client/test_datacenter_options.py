"""`--dc`, `--to eu=...` and `--split`: what they mean, and one line for each mistake."""

from __future__ import annotations

import pytest

from squall.api.errors import UsageError
from squall.cluster.client.datacenter_options import (
    addresses_of,
    split_of,
    targets_of,
    weights_of,
)
from squall.cluster.protocol.submission import Targets


def test_parts_in_percent_and_equal_parts() -> None:
    assert weights_of("eu=60%,us=40%", "--dc") == (("eu", 0.6), ("us", 0.4))
    assert weights_of("eu, us", "--dc") == (("eu", 0.5), ("us", 0.5))
    assert sum(part for _, part in weights_of("a=33.3%,b=33.3%,c=33.4%", "--dc")) == 1.0
    assert weights_of("eu", "--dc") == (("eu", 1.0),)


def test_the_targets_of_a_gate() -> None:
    assert targets_of(None, None) is None
    assert targets_of("eu,us", None) == Targets(weights=(("eu", 0.5), ("us", 0.5)))
    assert targets_of("any:2", None) == Targets(count=2)
    assert targets_of(None, "any") == Targets(fallback=True)
    assert targets_of("eu", "us,ap") == Targets(weights=(("eu", 1.0),), fallback=("us", "ap"))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("eu=60%,us=30%", "the parts add up to 90 %, not to 100 %"),
        ("eu=60%,us", "give every datacenter a part, or none"),
        ("eu,eu", "eu is named twice"),
        ("eu=50%,eu=50%", "eu is named twice"),
        ("eu=0%,us=100%", "write its part in percent, such as eu=60%"),
        ("eu=0.6,us=0.4", "write its part in percent, such as eu=60%"),
        ("eu=nan%", "write its part in percent"),
        ("eu=1e500%", "write its part in percent"),
        ("eu=,us=40%", "write its part in percent"),
        ("e u", "is no name of a datacenter"),
        ("", "is no name of a datacenter"),
        ("any:0", "write how many datacenters, such as any:2"),
        ("any:two", "write how many datacenters, such as any:2"),
    ],
)
def test_a_mistake_in_dc_is_one_line(text: str, said: str) -> None:
    with pytest.raises(UsageError) as refused:
        targets_of(text, None) if text else weights_of(text, "--dc")
    assert said in str(refused.value)
    assert str(refused.value).startswith("--dc") and "\n" not in str(refused.value)


def test_the_managers_of_each_datacenter() -> None:
    assert addresses_of("10.0.0.1:7400,10.0.0.2:7400") is None
    assert addresses_of("") is None
    found = addresses_of("eu=10.0.0.1:7400;10.0.0.2:7400, us=10.1.0.1:7400")
    assert found == {"eu": "10.0.0.1:7400,10.0.0.2:7400", "us": "10.1.0.1:7400"}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("eu=a:1,b:2", "b:2 has no datacenter; write eu=HOST:PORT,us=HOST:PORT and join"),
        ("eu=a:1,eu=b:2", "eu is named twice"),
        ("eu=,us=b:2", "eu has no address; write eu=HOST:PORT"),
        ("=a:1", "is no name of a datacenter"),
    ],
)
def test_a_mistake_in_to_is_one_line(text: str, said: str) -> None:
    with pytest.raises(UsageError) as refused:
        addresses_of(text)
    assert said in str(refused.value) and "\n" not in str(refused.value)


def test_a_split_has_a_part_for_every_datacenter_in_the_order_of_to() -> None:
    assert split_of(None, ["eu", "us"]) == (("eu", 0.5), ("us", 0.5))
    assert split_of("us=40%,eu=60%", ["eu", "us"]) == (("eu", 0.6), ("us", 0.4))
    with pytest.raises(UsageError, match="no datacenter ap; --to names eu, us"):
        split_of("eu=60%,ap=40%", ["eu", "us"])
    with pytest.raises(UsageError, match="us of --to has no part"):
        split_of("eu=100%", ["eu", "us"])
