"""The flat namespace of `squall`: every public name has a home, and only those."""

import squall


def test_every_public_name_can_be_imported() -> None:
    assert all(getattr(squall, name) is not None for name in squall.__all__)


def test_the_lazy_table_and_the_public_list_agree() -> None:
    homes = squall._HOME_OF  # pyright: ignore[reportPrivateUsage]
    assert sorted(homes) == sorted(squall.__all__)
