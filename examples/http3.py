"""HTTP/3: calls at the same time are streams of one connection."""

import asyncio

from squall import URL, HTTP3Response, Workflow, check, step, then


class Feed(Workflow):
    host = "https://127.0.0.1:8080"
    vus = 20
    duration = "10s"

    @step()
    async def page(self, url: URL = "/feed") -> HTTP3Response:
        return await self.client.http3.get(url)

    @then()
    async def pictures(self, url: URL = "/pictures/{number}") -> HTTP3Response:
        """All at once, as a browser does; the step has the latency of the last one."""
        get = self.client.http3.get
        numbers = range(1, 7)
        return (await asyncio.gather(*(get(url, path={"number": n}) for n in numbers)))[-1]

    @then()
    async def comment(self, url: URL = "/comments") -> HTTP3Response:
        return await self.client.http3.post(url, json={"text": "nice"})

    @check("page")
    def speaks_http3(self, page: HTTP3Response) -> bool:
        return page.head.version == "HTTP/3"
