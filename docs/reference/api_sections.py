"""What the API page shows: `make.py` writes it from this table."""

from __future__ import annotations

# Sections of the API page: title, introduction, and the names as "module:name".
API: list[tuple[str, str, list[str]]] = [
    (
        "Workflows",
        "The class that you subclass, and what `self` has in a step.",
        ["squall.api.workflow:Workflow", "squall.api.workflow:VU"],
    ),
    (
        "Decorators",
        "They turn methods into steps and other hooks ([how](../workflows.md)).",
        [
            f"squall.api.hooks:{name}"
            for name in ("step", "then", "action", "check", "metric", "state", "depends")
        ]
        + ["squall.api.hooks:Provide", "squall.api.hooks:Use", "squall.api.hooks:All"]
        + ["squall.api.hooks:BoundStep"],
    ),
    (
        "Arguments",
        "Types of parameters that Squall prepares once, before the clock starts. Write the plain "
        'value as the default: `url: URL = "/search"`. Every call also takes plain values.',
        [
            f"squall.api.arguments:{name}"
            for name in (
                *("URL", "Headers", "Params", "Cookies", "Data", "Form", "Auth", "File"),
                *("Query", "Mutation", "Protobuf"),
                *("Directory", "FileGlob", "Email", "FileSet"),
            )
        ]
        + ["squall.api.arguments:SQL", "squall.api.arguments:Document"]
        + ["squall.api.values:env", "squall.api.values:bearer"],
    ),
    (
        "HTTP",
        "The clients of a user, `self.client.http`, `http2` and `http3`, and what they return.",
        [
            f"squall.api.http:{name}"
            for name in (
                *("HTTPVerbs", "CallOptions", "BodyOptions"),
                *("HTTPResponse", "HTTPHeaders", "HTTPTimings"),
                *("HTTP2Verbs", "HTTP2Response"),
                *("HTTP3Verbs", "HTTP3Response"),
            )
        ],
    ),
    (
        "WebSocket",
        "Sessions of a user, `self.client.websocket`, and messages ([how](../websocket.md)).",
        [
            f"squall.api.websocket:{name}"
            for name in (
                *("WebsocketVerbs", "SessionOptions", "WebsocketSession"),
                *("WebsocketResponse", "WebsocketTimings"),
            )
        ],
    ),
    (
        "Server-sent events",
        "Streams of a user, `self.client.sse`, and their events ([how](../sse.md)).",
        [
            f"squall.api.sse:{name}"
            for name in ("SSEVerbs", "ListenOptions", "SSEResponse", "SSEEvent")
        ],
    ),
    (
        "Message brokers",
        "`self.client.kafka`, `amqp` (also `rabbitmq`), `mqtt` and `nats`, and what they return "
        "([how](../brokers.md)).",
        [
            "squall.api.protocols.brokers.kafka:KafkaVerbs",
            "squall.api.protocols.brokers.kafka:KafkaResponse",
            "squall.api.protocols.brokers.amqp:AMQPVerbs",
            "squall.api.protocols.brokers.amqp:AMQPResponse",
            "squall.api.protocols.brokers.amqp:RabbitMQResponse",
            "squall.api.protocols.brokers.mqtt:MQTTVerbs",
            "squall.api.protocols.brokers.mqtt:MQTTResponse",
            "squall.api.protocols.brokers.nats:NATSVerbs",
            "squall.api.protocols.brokers.nats:NATSResponse",
            "squall.api.protocols.brokers.messages:ReceivedMessage",
        ],
    ),
    (
        "gRPC",
        "Calls of a user, `self.client.grpc`, their streams and replies ([how](../grpc.md)).",
        [
            "squall.api.protocols.proto:Proto",
            *(
                f"squall.api.protocols.grpc:{name}"
                for name in (
                    *("GRPCVerbs", "GRPCOptions", "GRPCStream"),
                    *("GRPCResponse", "GRPCTimings"),
                )
            ),
        ],
    ),
    (
        "GraphQL",
        "Operations of a user, `self.client.graphql` and `graphql2`, and their answers "
        "([how](../graphql.md)).",
        [
            f"squall.api.protocols.graphql:{name}"
            for name in (
                *("GraphQLVerbs", "OperationOptions", "SubscriptionOptions"),
                *("GraphQLSubscription", "GraphQLResponse", "GraphQLError"),
            )
        ],
    ),
    (
        "Redis, TCP and UDP",
        "The clients `self.client.redis` ([how](../redis.md)), `tcp` and `udp` "
        "([how](../sockets.md)). Their responses have the attributes of a `ProtocolResponse`.",
        [
            "squall.api.protocols.response:ProtocolResponse",
            "squall.api.protocols.response:CallTimings",
            "squall.api.protocols.redis:RedisVerbs",
            "squall.api.protocols.redis:RedisResponse",
            *(
                f"squall.api.protocols.tcp:{name}"
                for name in ("TCPVerbs", "TCPResponse", "LengthPrefix")
            ),
            *(f"squall.api.protocols.udp:{name}" for name in ("UDPVerbs", "UDPResponse")),
        ],
    ),
    (
        "Databases",
        "Statements and commands of a user, `self.client.postgres`, `mysql` and `mongodb` "
        "([how](../databases.md)).",
        [
            *(
                f"squall.api.protocols.sql:{name}"
                for name in (
                    *("SQLVerbs", "SQLOptions", "SQLTransaction"),
                    *("SQLResponse", "PostgresResponse", "MySQLResponse"),
                )
            ),
            *(
                f"squall.api.protocols.mongodb:{name}"
                for name in (
                    *("MongoDBVerbs", "CommandOptions", "FindOptions", "UpdateOptions"),
                    *("DeleteOptions", "MongoDBResponse"),
                )
            ),
        ],
    ),
    (
        "Mail and files",
        "`self.client.smtp`, `ftp`, `sftp` and `scp`, and what they return "
        "([how](../mail-and-files.md)).",
        [
            *(
                f"squall.api.protocols.smtp:{name}"
                for name in ("SMTPVerbs", "SendOptions", "EmailParts", "SMTPResult")
            ),
            *(
                f"squall.api.protocols.transfers:{name}"
                for name in (
                    *("FTPVerbs", "FTPOptions", "SFTPVerbs", "SCPVerbs", "SSHOptions"),
                    *("TransferResult", "FTPResult", "SFTPResult", "SCPResult"),
                )
            ),
        ],
    ),
    (
        "Browser",
        "Pages of a user, `self.client.browser`, and what they return ([how](../browser.md)).",
        [
            f"squall.api.protocols.browser:{name}"
            for name in ("BrowserVerbs", "OpenOptions", "ActionOptions", "PageResult")
        ],
    ),
    (
        "Data and resources",
        "Class attributes of a workflow.",
        ["squall.api.feeds:Feed", "squall.api.resources:Resource"],
    ),
    (
        "Metrics",
        "Class attributes of a workflow; the attribute's name is the metric's name.",
        [f"squall.api.metrics:{name}" for name in ("Counter", "Gauge", "Rate", "Sample")],
    ),
    (
        "Protocols of your own",
        "What a step returns to measure something other than HTTP.",
        ["squall.api.results:CustomResult", "squall.api.results:Timed"],
    ),
    (
        "Runs from Python",
        "Times in a result are in seconds.",
        [
            "squall.python:run",
            "squall.reporting.run_result:Result",
            "squall.reporting.run_result:WorkflowResult",
            "squall.reporting.run_result:StepResult",
            "squall.python:LocalRunner",
        ],
    ),
    (
        "Jobs on a cluster",
        "The same from a Python program, on managers or agents.",
        ["squall.client:Client", "squall.client:Job"],
    ),
    (
        "Reporters",
        "Deliver results to a place of your own "
        "([how](../outputs-files.md#a-reporter-of-your-own)).",
        [
            *("squall.reporters:Reporter", "squall.reporters:ReporterTypes"),
            "squall.api.reporting:LiveReporter",
        ],
    ),
    (
        "Errors",
        "What Squall raises on purpose.",
        [
            f"squall.api.errors:{name}"
            for name in ("SquallError", "ConfigError", "TransportError", "StatusError")
        ],
    ),
]
