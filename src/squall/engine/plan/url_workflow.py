"""`squall run https://host/path`: a workflow of one step, without a file."""

from __future__ import annotations

from squall.api.arguments import URL, Data, Headers
from squall.api.hooks import step
from squall.api.http import HTTPResponse
from squall.api.workflow import Workflow
from squall.engine.run_options import RunOptions


def url_workflow(options: RunOptions) -> type[Workflow]:
    """The workflow `Url`; its step is named after the method of the request."""
    request = options.request
    method = request.method

    async def plain(self: Workflow, url: URL = options.url) -> HTTPResponse:
        return await self.client.http.get(url)

    async def send(
        self: Workflow,
        url: URL = options.url,
        headers: Headers = request.headers,
        body: Data | None = request.body,
    ) -> HTTPResponse:
        return await self.client.http.request(method, url, headers=headers, data=body)

    is_plain = method == "GET" and not request.headers and request.body is None
    name = method.lower().replace("-", "_")
    return type("Url", (Workflow,), {name: step()(plain if is_plain else send)})
