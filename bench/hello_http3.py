"""A GET of eleven bytes over HTTP/3: ten users on each connection, or one."""

import os

from squall import URL, HTTP3Response, Workflow, step


class Hello(Workflow):
    host = "https://127.0.0.1:8443"
    connections = "shared"
    streams = int(os.environ.get("STREAMS", "10"))
    duration = "5s"

    @step()
    async def home(self, url: URL = "/") -> HTTP3Response:
        return await self.client.http3.get(url)
