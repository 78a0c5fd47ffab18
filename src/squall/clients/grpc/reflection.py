"""Asks a server for its methods, by the reflection service of gRPC."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from google.protobuf import descriptor_pb2
from grpc_reflection.v1alpha import reflection_pb2

from squall.api.errors import TransportError
from squall.api.protocols.grpc import GRPCResponse

if TYPE_CHECKING:
    from squall.clients.grpc.client import GRPCClient

# Servers have one of them or both; their messages are equal.
_SERVICES = ("grpc.reflection.v1", "grpc.reflection.v1alpha")
_METHOD = "ServerReflection/ServerReflectionInfo"
_Request: Any = reflection_pb2.ServerReflectionRequest
_Answer: Any = reflection_pb2.ServerReflectionResponse


async def methods_of(client: GRPCClient, origin: str) -> tuple[GRPCResponse, list[str]]:
    """(The response that ended the questions, lines like
    "shop.Shop/Buy(shop.Order) returns (shop.Receipt)")."""
    response, names = await _asked(client, origin, _SERVICES[0], [_Request(list_services="")])
    package = _SERVICES[0]
    if response.status == "UNIMPLEMENTED":
        package, setup = _SERVICES[1], response.setup
        response, names = await _asked(client, origin, package, [_Request(list_services="")])
        response.setup = setup
    if not response.ok or not names:
        return response, []
    services = [each.name for each in names[0].list_services_response.service]
    wanted = [name for name in services if not name.startswith("grpc.reflection.")]
    questions = [_Request(file_containing_symbol=name) for name in wanted]
    if not questions:
        return response, []
    found, answers = await _asked(client, origin, package, questions)
    lines: list[str] = []
    for name, answer in zip(wanted, answers, strict=False):
        for data in answer.file_descriptor_response.file_descriptor_proto:
            lines += _methods(descriptor_pb2.FileDescriptorProto.FromString(data), name)
    # The timings are those of the first call, which opened the connection.
    return (response if found.ok else found), lines


async def _asked(
    client: GRPCClient, origin: str, package: str, questions: list[Any]
) -> tuple[GRPCResponse, list[Any]]:
    response = await client.stream(f"{origin}/{package}.{_METHOD}", questions)
    try:
        return response, [_Answer.FromString(each) for each in response.raw_replies]
    except Exception:
        raise TransportError("gRPC: the server's answer is no reflection") from None


def _methods(file: Any, service: str) -> list[str]:
    lines: list[str] = []
    for each in file.service:
        full = f"{file.package}.{each.name}" if file.package else each.name
        if full == service:
            lines += [f"{full}/{method.name}{_signature(method)}" for method in each.method]
    return lines


def _signature(method: Any) -> str:
    request = f"{'stream ' if method.client_streaming else ''}{method.input_type.lstrip('.')}"
    reply = f"{'stream ' if method.server_streaming else ''}{method.output_type.lstrip('.')}"
    return f"({request}) returns ({reply})"
