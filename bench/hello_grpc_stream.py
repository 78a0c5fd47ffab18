"""A stream of the server per iteration, all of whose messages are read."""

from squall import URL, GRPCResponse, Protobuf, Workflow, step


class Hello(Workflow):
    @step()
    async def listen(
        self, url: URL = "/demo.Echo/Many", message: Protobuf = b"\x0a\x0bhello world"
    ) -> GRPCResponse:
        return await self.client.grpc.stream(url, message)
