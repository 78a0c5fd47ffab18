"""`self.client.mongodb`: MongoDB, on a connection of pymongo.

`client` has the verbs, `session` runs commands, `documents` encodes documents before the run.
"""

from squall.clients.mongodb.client import MongoDBClient

__all__ = ["MongoDBClient"]
