"""The Redis client: commands packed and replies parsed by hiredis, on connections of its own.

`client` has the verbs, `connection` the protocol on the wire: log-in, commands, replies.
"""

from squall.clients.redis.client import RedisClient

__all__ = ["RedisClient"]
