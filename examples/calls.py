"""Every kind of argument, prepared once before the clock starts."""

from squall import (
    URL,
    Auth,
    Cookies,
    File,
    Form,
    Headers,
    HTTPResponse,
    Params,
    Workflow,
    bearer,
    env,
    step,
    then,
)


class Calls(Workflow):
    host = "http://127.0.0.1:8080"

    @step()
    async def search(
        self,
        url: URL = "/search",
        headers: Headers = {"Accept": "application/json"},
        params: Params = {"q": "shoes", "n": 20},
        cookies: Cookies = {"lang": "en"},
        auth: Auth = bearer(env("API_TOKEN", "dev")),
    ) -> HTTPResponse:
        return await self.client.http.get(
            url, headers=headers, params=params, cookies=cookies, auth=auth
        )

    @then()
    async def as_form(self, url: URL = "/login", login: Form = {"user": "ada"}) -> HTTPResponse:
        return await self.client.http.post(url, form=login, auth=("ada", "secret"), timeout="5s")

    @then()
    async def upload(self, url: URL = "/files", picture: File = "cat.png") -> HTTPResponse:
        return await self.client.http.post(url, files={"picture": picture}, redirects=0)

    @then()
    async def from_memory(self, url: URL = "/files") -> HTTPResponse:
        report = ("report.csv", f"user\n{self.vu.id}\n", "text/csv")
        return await self.client.http.post(url, files={"report": report})

    @then()
    async def as_body(self, url: URL = "/files", picture: File = "cat.png") -> HTTPResponse:
        return await self.client.http.put(url, data=picture)
