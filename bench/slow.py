"""One step against an answer whose delay has a known distribution."""

from squall import URL, HTTPResponse, Workflow, step


class Slow(Workflow):
    host = "http://127.0.0.1:8080"

    @step()
    async def slow(self, url: URL = "/slow?delay=lognormal:20ms,0.4") -> HTTPResponse:
        return await self.client.http.get(url)
