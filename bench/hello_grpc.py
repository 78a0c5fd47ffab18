"""A gRPC call per iteration. With STREAMS above 1 so many users share a connection."""

import os

from squall import URL, GRPCResponse, Protobuf, Workflow, step

# Field 1 is "hello world".
MESSAGE = b"\x0a\x0bhello world"


class Hello(Workflow):
    streams = int(os.environ.get("STREAMS", "1"))
    connections = "shared" if streams > 1 else "vu"

    @step()
    async def say(self, url: URL = "/demo.Echo/Say", message: Protobuf = MESSAGE) -> GRPCResponse:
        return await self.client.grpc.unary(url, message)
