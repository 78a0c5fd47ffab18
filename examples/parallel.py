"""The diamond: two steps at the same time, and one that waits for both."""

from squall import URL, Data, HTTPResponse, Workflow, step


class Shop(Workflow):
    host = "http://127.0.0.1:8080"
    vus = 50

    @step()
    async def login(self, url: URL = "/login", body: Data = {"user": "ada"}) -> HTTPResponse:
        return await self.client.http.post(url, data=body)

    @step("login")  # these two run at the same time
    async def cart(self, url: URL = "/cart") -> HTTPResponse:
        return await self.client.http.get(url)

    @step("login")
    async def offers(self, url: URL = "/offers") -> HTTPResponse:
        return await self.client.http.get(url)

    @step("cart", "offers")  # waits for both, gets both
    async def pay(
        self, cart: HTTPResponse, offers: HTTPResponse, url: URL = "/pay"
    ) -> HTTPResponse:
        return await self.client.http.post(url, json={"n": len(cart.json()) + len(offers.json())})
