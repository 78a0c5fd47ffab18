"""Sign in once per virtual user; token and cookies are kept."""

from squall import URL, Form, HTTPResponse, Workflow, action, step


class Member(Workflow):
    host = "http://127.0.0.1:8080"
    vus = 100

    @action(at="start")
    async def sign_in(
        self, url: URL = "/login", form: Form = {"user": "ada", "password": "x"}
    ) -> None:
        response = await self.client.http.post(url, form=form)
        response.raise_for_status()
        self.context["token"] = response.json()["token"]

    @step()
    async def inbox(self, token: str, url: URL = "/inbox") -> HTTPResponse:
        return await self.client.http.get(url, headers={"X-Token": token})

    @action(at="end")
    async def sign_out(self, url: URL = "/logout") -> None:
        await self.client.http.post(url)
