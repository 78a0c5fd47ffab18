"""Redis: carts of a shop, stock that a transaction takes, and a list of orders.

squall run redis_shop.py -e REDIS=redis://127.0.0.1:6379/0
"""

from squall import URL, Counter, RedisResponse, Workflow, env, step, then

REDIS = env("REDIS", "redis://127.0.0.1:6379/0")


class Cart(Workflow):
    vus = 20
    duration = "10s"

    sold = Counter()

    @step()
    async def put(self, url: URL = REDIS) -> RedisResponse:
        """A key of this user, which is gone after a minute."""
        return await self.client.redis.set(url, f"cart:{self.vu.id}", "shoes", expires="1m")

    @then()
    async def look(self, url: URL = REDIS) -> RedisResponse:
        cart = await self.client.redis.get(url, f"cart:{self.vu.id}")
        self.check("the cart is kept", cart.value == b"shoes")
        return cart

    @then()
    async def buy(self, url: URL = REDIS) -> RedisResponse:
        """Three commands in one transaction: one exchange, all of them or none."""
        bought = await self.client.redis.pipeline(
            url,
            [
                ("INCR", "sold"),
                ("RPUSH", "orders", f"order of {self.vu.id}"),
                ("LTRIM", "orders", -9, -1),
            ],
            transaction=True,
        )
        if bought.ok:
            self.sold.add()
        return bought

    @then()
    async def orders(self, url: URL = REDIS) -> RedisResponse:
        """Any command: the verbs have the common ones."""
        return await self.client.redis.call(url, "LLEN", "orders", timeout="5s")
