"""MongoDB: insert, find, update, aggregate; a connection for each user."""

from squall import URL, Document, MongoDBResponse, Workflow, check, env, step, then

DATABASE = env("DATABASE", "mongodb://127.0.0.1:27017/shop")


class Shop(Workflow):
    vus = 20
    duration = "10s"

    @step()
    async def order(
        self, url: URL = DATABASE, order: Document = {"item": "shoe", "price": 30}
    ) -> MongoDBResponse:
        return await self.client.mongodb.insert(url, "orders", order)

    @then()
    async def look(
        self, url: URL = DATABASE, shoes: Document = {"item": "shoe"}
    ) -> MongoDBResponse:
        return await self.client.mongodb.find(url, "orders", shoes, limit=10)

    @check("look")
    def finds_shoes(self, look: MongoDBResponse) -> bool:
        return look.ok and look.rows[0]["item"] == "shoe"

    @then()
    async def count(self, url: URL = DATABASE) -> MongoDBResponse:
        change = {"$inc": {"orders": 1}}
        customer = {"_id": f"customer {self.vu.id}"}
        return await self.client.mongodb.update(url, "customers", customer, change, upsert=True)

    @then()
    async def total(
        self,
        url: URL = DATABASE,
        stages: Document = [{"$group": {"_id": None, "sold": {"$sum": "$price"}}}],
    ) -> MongoDBResponse:
        return await self.client.mongodb.aggregate(url, "orders", stages)
