# SPDX-License-Identifier: Apache-2.0
"""The plan in force of a running server, asked over TensorFlow's own gRPC port.

The question is a RecvBuf request whose key is "rdmatensor.plan"; the answer's transport options are the plan
as JSON. A server without the plugin fails the request.
"""

from __future__ import annotations

import secrets
from functools import cache
from typing import Any

from .model.errors import AnalysisError, LiveError
from .model.plan import TransferPlan, join

KEY = "rdmatensor.plan"
METHOD = "/tensorflow.WorkerService/RecvBuf"
TIMEOUT_S = 10.0

# Any plan fits; gRPC's limit of 4 MB does not.
_OPTIONS = [("grpc.max_receive_message_length", -1), ("grpc.enable_http_proxy", 0)]


def live(*targets: str, timeout: float = TIMEOUT_S) -> TransferPlan:
    """The plan of the servers at "grpc://host:port" or "host:port", asked one after the other, each for at
    most `timeout` seconds. A server knows what it receives; ask all for the whole.

    LiveError when a server cannot be reached, or has no plugin, or tells no plan.
    """
    if not targets:
        raise LiveError("no server was named: give grpc://host:port")
    addresses = [_address(target) for target in targets]
    return join([_plan(address, timeout) for address in addresses])


def _plan(address: str, timeout: float) -> TransferPlan:
    try:
        return TransferPlan.from_json(_ask(address, timeout))
    except AnalysisError as error:
        raise LiveError(f"{address}: {error}") from error


def _address(target: str) -> str:
    scheme, separator, rest = target.partition("://")
    address = rest if separator else target
    host, colon, port = address.rpartition(":")
    if (separator and not scheme.startswith("grpc")) or not (host and colon and port.isdigit()):
        raise LiveError(f"{target!r} is no server: give grpc://host:port, as for tf.Session")
    return address


def _ask(address: str, timeout: float) -> bytes:
    try:
        import grpc
    except ImportError:
        raise LiveError("asking a server needs grpcio: pip install grpcio") from None
    request_type, response_type = _messages()
    request = request_type(
        buf_rendezvous_key=KEY, src_device=KEY, request_id=secrets.randbelow(2**63 - 1) + 1
    )
    request.transport_options.type_url = KEY
    with grpc.insecure_channel(address, options=_OPTIONS) as channel:
        call = channel.unary_unary(
            METHOD,
            request_serializer=request_type.SerializeToString,
            response_deserializer=response_type.FromString,
        )
        try:
            response = call(request, timeout=timeout, wait_for_ready=False)
        except grpc.RpcError as error:
            raise LiveError(_why(address, error, grpc)) from None
    if response.transport_options.type_url != KEY:
        raise LiveError(
            f"{address} answered, but tells no plan: the server needs rdmatensor with a planner and "
            'protocol="grpc+rdma"'
        )
    return bytes(response.transport_options.value)


def _why(address: str, error: Any, grpc: Any) -> str:
    code, details = error.code(), error.details()
    if code == grpc.StatusCode.UNAVAILABLE:
        return f"{address} cannot be reached ({details}): is the server running, and the address right?"
    if code == grpc.StatusCode.DEADLINE_EXCEEDED:
        return f"{address} did not answer in time: is it a TensorFlow server that is not stopped?"
    return (
        f"{address} tells no plan ({code.name}: {details}): the server needs rdmatensor with a planner and "
        'protocol="grpc+rdma"'
    )


@cache
def _messages() -> tuple[Any, Any]:
    """RecvBufRequest and RecvBufResponse, with the fields that are used. TensorFlow's Python package does
    not bring them; the numbers are those of tensorflow/core/protobuf/worker.proto."""
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    kinds = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(
        name="rdmatensor_plan.proto", package="rdmatensor.plan", syntax="proto3"
    )

    def message(name: str, *fields: tuple[str, int, int]) -> None:
        described = file.message_type.add(name=name)
        for field, number, kind in fields:
            added = described.field.add(
                name=field, number=number, type=kind, label=kinds.LABEL_OPTIONAL
            )
            if kind == kinds.TYPE_MESSAGE:
                added.type_name = ".rdmatensor.plan.Any"

    message("Any", ("type_url", 1, kinds.TYPE_STRING), ("value", 2, kinds.TYPE_BYTES))
    message(
        "Request",
        ("buf_rendezvous_key", 2, kinds.TYPE_STRING),
        ("transport_options", 7, kinds.TYPE_MESSAGE),
        ("src_device", 8, kinds.TYPE_STRING),
        ("request_id", 10, kinds.TYPE_INT64),
    )
    message("Response", ("transport_options", 4, kinds.TYPE_MESSAGE))
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    found = [
        message_factory.GetMessageClass(pool.FindMessageTypeByName(f"rdmatensor.plan.{name}"))
        for name in ("Request", "Response")
    ]
    return found[0], found[1]
