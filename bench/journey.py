"""A journey through a shop: a page, a list as JSON with a check, an order as JSON with a check."""

from squall import URL, HTTPResponse, Workflow, step, then


class Shop(Workflow):
    host = "http://127.0.0.1:8080"

    @step()
    async def home(self, url: URL = "/") -> HTTPResponse:
        return await self.client.http.get(url)

    @then()
    async def items(self, url: URL = "/items") -> HTTPResponse:
        response = await self.client.http.get(url)
        self.check("20 items", len(response.json()["items"]) == 20)
        return response

    @then()
    async def order(self, items: HTTPResponse, url: URL = "/orders") -> HTTPResponse:
        item = items.json()["items"][self.vu.iteration % 20]["id"]
        response = await self.client.http.post(
            url, json={"item": item, "count": 1}, headers={"X-Shopper": f"user-{self.vu.id}"}
        )
        self.check("accepted", response.status_code == 201)
        return response
