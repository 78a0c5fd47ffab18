"""Checks, metrics and thresholds."""

from squall import URL, Counter, HTTPResponse, Workflow, metric, step


class Orders(Workflow):
    host = "http://127.0.0.1:8080"
    vus = 50
    orders = Counter()
    thresholds = [
        "order.p(95) < 500ms",
        "order.p(99) < 2s over 10s, abort",
        "errors < 1%",
        "checks > 99%",
        "orders > 10/s",
        "http_req_duration: p(95)<500",
    ]

    @step(expect="2xx", timeout="5s")
    async def order(self, url: URL = "/orders") -> HTTPResponse:
        response = await self.client.http.post(url, json={"sku": 7})
        if self.check("has an id", "id" in response.text):
            self.orders.add()
        return response

    @metric("order", unit="ms")
    def server_time(self, order: HTTPResponse) -> float:
        return float(order.headers.get("X-Time", 0))
