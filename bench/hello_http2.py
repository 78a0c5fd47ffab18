"""A GET over HTTP/2 per iteration. With STREAMS above 1 so many users share a connection."""

import os

from squall import URL, HTTP2Response, Workflow, step


class Hello(Workflow):
    streams = int(os.environ.get("STREAMS", "1"))
    connections = "shared" if streams > 1 else "vu"

    @step()
    async def get(self, url: URL = "/") -> HTTP2Response:
        return await self.client.http2.get(url)
