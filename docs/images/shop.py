"""The run of the pictures: a shop whose payments are slow and fail now and then."""

from squall import URL, HTTPResponse, Workflow, check, step


class Shop(Workflow):
    rate = "200/s"
    duration = "90s"
    thresholds = ["pay.p(99) < 150ms", "errors < 1%", "dropped < 0.1%"]

    @step()
    async def login(self, url: URL = "/login?delay=lognormal:12ms,0.4") -> HTTPResponse:
        return await self.client.http.get(url)

    @step("login")
    async def cart(self, url: URL = "/cart?delay=lognormal:8ms,0.3") -> HTTPResponse:
        return await self.client.http.get(url)

    @step("login")
    async def offers(self, url: URL = "/offers?delay=lognormal:9ms,0.3") -> HTTPResponse:
        return await self.client.http.get(url)

    @step("cart", "offers")
    async def pay(
        self, url: URL = "/pay?delay=lognormal:40ms,0.6&status=200:990,503:8,429:2"
    ) -> HTTPResponse:
        return await self.client.http.post(url, json={"sku": 7})

    @check("pay")
    async def paid(self, pay: HTTPResponse) -> bool:
        return pay.ok
