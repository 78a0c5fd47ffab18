"""Document stores, caches and queues: MongoDB, Cassandra, Cosmos DB, Redis, Kafka. One file each;
all of them get the rows of `squall.reporting.outputs.rows`."""
