"""The GraphQL clients: operations over HTTP/1.1 and HTTP/2, subscriptions over WebSocket.

`documents` parses and encodes, `client` has the verbs, `subscription` is an open subscription.
Needs the package `graphql-core`, which parses documents before the run.
"""

from squall.clients.graphql.client import GraphQL2Client, GraphQLClient

__all__ = ["GraphQL2Client", "GraphQLClient"]
