"""A key of Redis, and echoes of 64 bytes over TCP and UDP; `--only` chooses one."""

from squall import URL, Data, RedisResponse, TCPResponse, UDPResponse, Workflow, env, step

TARGET = env("TARGET", "127.0.0.1:6379")


class Redis(Workflow):
    @step()
    async def get(self, url: URL = f"redis://{TARGET}/3") -> RedisResponse:
        return await self.client.redis.get(url, "key:0")


class Tcp(Workflow):
    @step()
    async def echo(self, url: URL = f"tcp://{TARGET}", data: Data = "x" * 64) -> TCPResponse:
        return await self.client.tcp.exchange(url, data, until=64)


class Udp(Workflow):
    @step()
    async def echo(self, url: URL = f"udp://{TARGET}", data: Data = "x" * 64) -> UDPResponse:
        return await self.client.udp.exchange(url, data)
