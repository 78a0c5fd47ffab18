"""GraphQL: a query with variables, a mutation, and the events of a subscription."""

from squall import (
    URL,
    Feed,
    GraphQLResponse,
    Mutation,
    Query,
    Workflow,
    check,
    step,
    then,
)


class Shop(Workflow):
    host = "http://127.0.0.1:8080"
    vus = 20
    duration = "10s"

    product = Feed([{"id": "1"}, {"id": "2"}, {"id": "3"}])

    @step()
    async def look(
        self,
        url: URL = "/graphql",
        query: Query = """
            query Look($id: ID!) {
              product(id: $id) { id name price }
            }
        """,
    ) -> GraphQLResponse:
        return await self.client.graphql.query(url, query, self.product, name="Look")

    @check("look")
    def is_the_product(self, look: GraphQLResponse) -> bool:
        return look.ok and look.data["product"]["id"] == self.product["id"]

    @then()
    async def order(
        self,
        url: URL = "/graphql",
        mutation: Mutation = "mutation Order($id: ID!) { order(id: $id, count: 2) }",
    ) -> GraphQLResponse:
        return await self.client.graphql.mutate(url, mutation, self.product)

    @then()
    async def follow(
        self, url: URL = "/graphql", query: Query = "subscription { ticks(count: 3) }"
    ) -> GraphQLResponse:
        """Events over a WebSocket; the step has the latency of the last one."""
        async with self.client.graphql.subscribe(url, query) as events:
            last = await events.receive(timeout="5s")
            async for event in events:
                last = event
        assert last is not None
        return last
