"""Three steps whose times are the target's delays; PAY sets that of the last."""

from squall import URL, HTTPResponse, Workflow, env, step, then

PAY = env("PAY", "40ms")


class Shop(Workflow):
    rate = "40/s"

    @step()
    async def login(self, url: URL = "/?delay=20ms") -> HTTPResponse:
        return await self.client.http.get(url)

    @then()
    async def cart(self, url: URL = "/?delay=30ms") -> HTTPResponse:
        return await self.client.http.get(url)

    @then()
    async def pay(self, url: URL = f"/?delay={PAY}") -> HTTPResponse:
        return await self.client.http.get(url)
