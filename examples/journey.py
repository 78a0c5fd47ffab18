"""A sequence, a value taken from a response, a check, and think time."""

from squall import URL, HTTPResponse, Workflow, check, env, step, then


class Journey(Workflow):
    host = env("TARGET", "http://127.0.0.1:8080")  # or --host
    vus = 20
    think = "1s..3s"

    @step()
    async def search(self, url: URL = "/search?q=shoes") -> HTTPResponse:
        return await self.client.http.get(url)

    @then()  # after the step above
    async def item(self, search: HTTPResponse, url: URL = "/items/{id}") -> HTTPResponse:
        return await self.client.http.get(url, path={"id": search.json()["items"][0]["id"]})

    @check("item")
    def has_price(self, item: HTTPResponse) -> bool:
        return item.ok and "price" in item.json()
