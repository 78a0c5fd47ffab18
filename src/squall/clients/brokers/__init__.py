"""The clients of message brokers: Kafka, RabbitMQ (AMQP), MQTT and NATS, each on its library.

`user_calls` keeps one connection of a user to each broker, with the user's subscriptions on it;
`inbox` keeps messages until they are received; `headers` has what all of them send and read. A
module per broker opens connections of the library and makes responses.
"""
