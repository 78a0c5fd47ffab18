"""The request of hello.py on a connection of its own, for the cost of a handshake."""

from squall import URL, HTTPResponse, Workflow, step


class HelloClose(Workflow):
    host = "https://127.0.0.1:8443"
    connections = "request"

    @step()
    async def home(self, url: URL = "/") -> HTTPResponse:
        return await self.client.http.get(url)
