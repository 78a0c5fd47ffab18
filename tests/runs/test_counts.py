"""The target's own count against what a run reports, for every load model and fault."""

from __future__ import annotations

import pytest
from runs_lab import Lab, check_counts, check_identities

HOME = """
class Home(Workflow):
    {profile}
    @step()
    async def home(self, url: URL = "{url}") -> HTTPResponse:
        return await self.client.http.get(url)
"""


def home(profile: str, url: str = "/") -> str:
    return HOME.format(profile="; ".join(profile.split("; ")), url=url)
