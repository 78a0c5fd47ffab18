"""The smallest workflow: fifty users fetch one page for ten seconds."""

from squall import URL, HTTPResponse, Workflow, step


class Hello(Workflow):
    vus = 50
    duration = "10s"

    @step()
    async def home(self, url: URL = "http://127.0.0.1:8080/") -> HTTPResponse:
        return await self.client.http.get(url)
