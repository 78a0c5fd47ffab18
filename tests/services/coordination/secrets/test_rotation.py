"""The secret changes while several processes exchange signals; `make accept-coord` runs five of
them at 20 signals a second on each store.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.services.coordination.acceptance.secret_rotation import RotationLab, change_the_secret
from tests.services.coordination.lab.places import Place


@pytest.mark.asyncio
@pytest.mark.parametrize("place", ["redis", "s3"], indirect=True)
async def test_a_secret_is_changed_while_processes_talk(place: Place, tmp_path: Path) -> None:
    slow = place.kind == "s3"
    lab = RotationLab(
        place.url,
        place.prefix,
        tmp_path,
        3.0 if slow else 1.0,
        members=3 if slow else 5,
        per_s=2.0 if slow else 20.0,
        look_s=2.0,
    )
    try:
        await change_the_secret(lab)
    finally:
        lab.close()
