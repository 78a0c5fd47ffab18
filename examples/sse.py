"""Server-sent events: how long until the first one, and how regularly they come."""

from squall import URL, Sample, SSEResponse, Workflow, step


class Ticker(Workflow):
    host = "http://127.0.0.1:8080"
    vus = 20
    duration = "10s"

    first_event = Sample("ms")
    gap = Sample("ms")

    @step()
    async def prices(self, url: URL = "/events") -> SSEResponse:
        stream = await self.client.sse.listen(url, events=5, timeout="10s")
        self.first_event.add(stream.first_event_s * 1000)
        for gap_s in stream.gaps:
            self.gap.add(gap_s * 1000)
        return stream
