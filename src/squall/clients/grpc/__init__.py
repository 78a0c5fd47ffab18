"""The gRPC client: calls of methods over our own HTTP/2 connections.

`client` has the verbs, `stream` is an open stream, `calls` is what all calls of a method share,
`framing` cuts bodies into messages, `methods` knows the types of methods, and `reflection` asks a
server for its methods. Needs the packages `hpack` and `protobuf`.
"""

from squall.clients.grpc.client import GRPCClient

__all__ = ["GRPCClient"]
