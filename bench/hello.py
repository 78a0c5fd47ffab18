"""The one request of the benchmark: a keep-alive GET of twelve bytes."""

from squall import URL, HTTPResponse, Workflow, step


class Hello(Workflow):
    host = "http://127.0.0.1:8080"
    vus = 64
    duration = "5s"

    @step()
    async def home(self, url: URL = "/") -> HTTPResponse:
        return await self.client.http.get(url)
