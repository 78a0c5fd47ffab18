"""TCP and UDP: lines, frames behind their length, and datagrams that may be lost.

squall run sockets.py -e TCP=tcp://127.0.0.1:7 -e UDP=udp://127.0.0.1:7
"""

from squall import (
    URL,
    Counter,
    Data,
    LengthPrefix,
    TCPResponse,
    UDPResponse,
    Workflow,
    env,
    step,
    then,
)

TCP = env("TCP", "tcp://127.0.0.1:7")
UDP = env("UDP", "udp://127.0.0.1:7")
FRAME = LengthPrefix(4)


class Lines(Workflow):
    vus = 10
    duration = "10s"

    @step()
    async def question(self, url: URL = TCP, line: Data = "how much?\n") -> TCPResponse:
        """Sends a line and returns the next one. The connection stays open for the next call."""
        return await self.client.tcp.exchange(url, line, until=b"\n", timeout="5s")

    @then()
    async def frame(self, url: URL = TCP) -> TCPResponse:
        """Sends a frame, and receives what comes as one."""
        await self.client.tcp.send(url, FRAME.pack(f"order of {self.vu.id}".encode()))
        return await self.client.tcp.expect(url, "order", until=FRAME)


class Datagrams(Workflow):
    vus = 10
    duration = "10s"

    lost = Counter()

    @step()
    async def ask(self, url: URL = UDP, data: Data = "how much?") -> UDPResponse:
        """A datagram without an answer is a failed response, and the iteration goes on."""
        answer = await self.client.udp.exchange(url, data, timeout="2s")
        if answer.lost:
            self.lost.add()
        return answer
