"""Opens a page in Chromium, looks for its text and measures how it is drawn."""

from squall import URL, PageResult, Sample, Workflow, step, then


class Visitor(Workflow):
    host = "http://127.0.0.1:8080"
    vus = 2
    iterations = 10
    first_paint = Sample("ms")
    largest_paint = Sample("ms")

    @step(timeout="20s")
    async def home(self, url: URL = "/") -> PageResult:
        page = await self.client.browser.open(url)
        self.first_paint.add(page.fcp_s * 1000)
        self.largest_paint.add(page.lcp_s * 1000)
        return page

    @then()
    async def read(self) -> PageResult:
        return await self.client.browser.expect("body", "hello")
