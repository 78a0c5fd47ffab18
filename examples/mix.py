"""A mix of traffic: 70 % browse, 30 % buy."""

from squall import URL, HTTPResponse, Workflow, step


class Visitor(Workflow):
    host = "http://127.0.0.1:8080"
    vus = 200

    @step()
    async def home(self, url: URL = "/") -> HTTPResponse:
        return await self.client.http.get(url)

    @step("home", weight=7)
    async def browse(self, url: URL = "/list") -> HTTPResponse:
        return await self.client.http.get(url, params={"page": self.vu.random.randint(1, 20)})

    @step("home", weight=3)
    async def buy(self, url: URL = "/buy") -> HTTPResponse:
        return await self.client.http.post(url, json={"sku": 7})
