"""What my users do. Run it with `squall run`; `--once` shows every request of one iteration."""

from squall import URL, HTTPResponse, Workflow, check, env, step, then


class Shop(Workflow):
    # URLs that begin with "/" go here; `--host` or TARGET=... replaces it.
    host = env("TARGET", "http://127.0.0.1:8080")

    # Open model: this many iterations start each second, whatever the target does.
    # Closed model instead: `vus = 20`, a fixed number of users, each in a loop.
    rate = "50/s"
    duration = "30s"

    # The run fails (exit code 99) when one of these does not hold.
    thresholds = ("item.p(95) < 500ms", "errors < 1%")

    # A step that returns an HTTPResponse is measured. Arguments annotated with URL,
    # Headers, Data and so on are prepared once, before the clock starts.
    @step()
    async def search(self, url: URL = "/search?q=shoes") -> HTTPResponse:
        return await self.client.http.get(url)

    # `@then()` runs after the step above; a parameter named like an earlier step
    # receives its response.
    @then()
    async def item(
        self,
        search: HTTPResponse,
        url: URL = "/items/{id}",
    ) -> HTTPResponse:
        first = search.json()["items"][0]
        return await self.client.http.get(url, path={"id": first["id"]})

    # A check is counted and reported, but does not fail the run by itself.
    @check("item")
    def has_price(self, item: HTTPResponse) -> bool:
        return item.ok and "price" in item.json()
