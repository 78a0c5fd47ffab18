"""WebSocket: a question on a session that the user keeps, and a whole conversation."""

from squall import URL, Counter, Data, WebsocketResponse, Workflow, step, then


class Chat(Workflow):
    host = "ws://127.0.0.1:8080"
    vus = 20
    duration = "10s"

    messages = Counter()

    @step()
    async def question(
        self, url: URL = "/echo", message: Data = {"type": "question", "text": "how much?"}
    ) -> WebsocketResponse:
        """The session stays open for the next iteration."""
        return await self.client.websocket.ask(url, message)

    @then()
    async def conversation(self, url: URL = "/echo") -> WebsocketResponse:
        """A session of its own: opened, used and closed. The step has the latency of its result."""
        async with self.client.websocket.open(url, protocols=["chat.v1"]) as session:
            await session.send("hello")
            greeting = await session.receive(timeout="5s")
            last = await session.ask(f"{greeting.text}, again")
            self.messages.add(session.received)
        return last
