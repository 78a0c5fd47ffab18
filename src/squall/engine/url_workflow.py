"""`squall run https://host/path`: a workflow of one step, without a file."""

from __future__ import annotations

from squall.api.arguments import URL
from squall.api.hooks import step
from squall.api.http import HTTPResponse
from squall.api.workflow import Workflow


def url_workflow(url: str) -> type[Workflow]:
    """A class named `Url` whose one step asks for the address again and again."""

    class Url(Workflow):
        @step()
        async def get(self, url: URL = url) -> HTTPResponse:
            return await self.client.http.get(url)

    return Url
