"""A message of 64 bytes and its echo per iteration."""

from squall import URL, Data, WebsocketResponse, Workflow, step


class Hello(Workflow):
    @step()
    async def ask(self, url: URL = "/", message: Data = "x" * 64) -> WebsocketResponse:
        return await self.client.websocket.ask(url, message)
