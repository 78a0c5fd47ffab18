"""Data from a file: every row goes to exactly one iteration."""

from dataclasses import dataclass

from squall import URL, Feed, HTTPResponse, Workflow, step


@dataclass
class User:
    name: str
    password: str


class Login(Workflow):
    host = "http://127.0.0.1:8080"
    rate = "20/s"
    user = Feed("users.csv", User, take="once")

    @step(expect=[200, 302])
    async def login(self, url: URL = "/login") -> HTTPResponse:
        return await self.client.http.post(
            url, form={"user": self.user.name, "password": self.user.password}
        )
