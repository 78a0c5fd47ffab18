"""A stream of 100,000 events per iteration."""

from squall import URL, SSEResponse, Workflow, step


class Hello(Workflow):
    @step()
    async def listen(self, url: URL = "/") -> SSEResponse:
        return await self.client.sse.listen(url, events=100_000, timeout="5m")
