"""The workflow of `squall demo`: customers of the built-in target's shop."""

from squall import URL, HTTPResponse, Workflow, check, env, step


class Shop(Workflow):
    """Modest on purpose: a laptop holds this rate, so the verdict is VALID."""

    host = env("SQUALL_DEMO_TARGET", "http://127.0.0.1:8080")
    rate = "100/s"
    duration = "10s"
    thresholds = ("pay.p(95) < 500ms", "errors < 1%")

    @step()
    async def login(self, url: URL = "/login?delay=5ms") -> HTTPResponse:
        return await self.client.http.post(url, json={"user": "ada"})

    @step("login")
    async def cart(self, url: URL = "/cart?delay=8ms") -> HTTPResponse:
        return await self.client.http.get(url)

    @step("login")
    async def offers(self, url: URL = "/offers?delay=3ms") -> HTTPResponse:
        return await self.client.http.get(url)

    @step("cart", "offers")
    async def pay(
        self, cart: HTTPResponse, offers: HTTPResponse, url: URL = "/pay?delay=20ms"
    ) -> HTTPResponse:
        return await self.client.http.post(
            url, json={"items": len(cart.json()) + len(offers.json())}
        )

    @check("pay")
    def paid(self, pay: HTTPResponse) -> bool:
        return bool(pay.json()["paid"])
