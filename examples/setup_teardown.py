"""Set-up and teardown once per test, with values passed by name and through `@state`."""

from squall import URL, HTTPResponse, Provide, Use, Workflow, depends, state, step


class Setup(Workflow):
    host = "http://127.0.0.1:8080"

    @step()
    async def tenant(self, url: URL = "/tenants") -> str:
        return str((await self.client.http.post(url)).json()["id"])


@depends("Setup")
class Shop(Workflow):
    host = "http://127.0.0.1:8080"
    vus = 100

    @step()
    async def order(self, tenant: str, url: URL = "/orders") -> HTTPResponse:
        return await self.client.http.post(url, json={"tenant": tenant})

    @state("Teardown")
    def last_order(self) -> Provide[str]:
        return str(self.order.response.json()["id"])


@depends("Setup", "Shop", when="always")  # also after a failure or Ctrl-C
class Teardown(Workflow):
    host = "http://127.0.0.1:8080"

    @state("Shop")
    def seen(self, last_order: str = "") -> Use[str]:
        return last_order

    @step()
    async def remove(self, tenant: str, url: URL = "/tenants/{id}") -> None:
        await self.client.http.delete(url, path={"id": tenant}, params={"last": self.seen()})
