"""Every load model on one step."""

from squall import URL, HTTPResponse, Workflow, step


class _Home(Workflow):  # leading underscore: shared, not run
    host = "http://127.0.0.1:8080"

    @step()
    async def home(self, url: URL = "/") -> HTTPResponse:
        return await self.client.http.get(url)


class Ramp(_Home):  # closed: users
    stages = ["30s:100", "2m:100", "10s:0"]


class Steady(_Home):  # open: iterations start on a plan, whatever the target does
    rate = "500/s"
    duration = "2m"
    thresholds = ["home.p(99) < 300ms", "dropped < 0.1%"]


class Peak(_Home):
    stages = ["1m:50/s", "5m:1000/s", "1m:0/s"]


class Fixed(_Home):  # 10,000 iterations in total
    vus = 20
    iterations = 10_000
