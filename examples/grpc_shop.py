"""gRPC: a call, a stream of the server, a stream of the client, and a conversation."""

from squall import (
    URL,
    GRPCResponse,
    Headers,
    Proto,
    Protobuf,
    Sample,
    Workflow,
    check,
    step,
    then,
)


class Shop(Workflow):
    host = "grpc://127.0.0.1:8080"
    vus = 20
    duration = "10s"

    shop = Proto("shop.proto")
    gap = Sample("ms")

    @step()
    async def buy(
        self,
        url: URL = "/shop.Shop/Buy",
        order: Protobuf = {"item": "shoe", "count": 2},
        metadata: Headers = {"x-tenant": "t1"},
    ) -> GRPCResponse:
        return await self.client.grpc.unary(url, order, metadata=metadata, timeout="5s")

    @check("buy")
    def has_a_receipt(self, buy: GRPCResponse) -> bool:
        return buy.ok and buy.reply.total == 2

    @then()
    async def watch(self, buy: GRPCResponse, url: URL = "/shop.Shop/Watch") -> GRPCResponse:
        """All replies of a stream; the message is made with the class of the file."""
        order = self.shop.Order(item=buy.reply.id, count=5)
        receipts = await self.client.grpc.stream(url, order)
        for gap_s in receipts.gaps:
            self.gap.add(gap_s * 1000)
        return receipts

    @then()
    async def collect(self, url: URL = "/shop.Shop/Collect") -> GRPCResponse:
        orders = [{"item": "shoe", "count": number} for number in range(1, 4)]
        return await self.client.grpc.stream(url, orders)

    @then()
    async def talk(self, url: URL = "/shop.Shop/Talk") -> GRPCResponse:
        """A stream that stays open while both sides talk."""
        async with self.client.grpc.open(url) as stream:
            for number in range(1, 4):
                receipt = await stream.ask({"item": "hat", "count": number}, timeout="5s")
                assert receipt.total == number
            return await stream.finish()
