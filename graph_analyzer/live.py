# SPDX-License-Identifier: Apache-2.0
"""Ask a running server for its plan in force over TensorFlow's own gRPC port.

The request is a RecvBuf whose key is "rdmatensor.plan". The transport options of the response hold the plan
as JSON. A server without the plugin rejects the request.
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
_NEEDED = 'the server needs rdmatensor with a planner and protocol="grpc+rdma"'

# gRPC's own limit of 4 MB would be too small for large plans.
_OPTIONS = [("grpc.max_receive_message_length", -1), ("grpc.enable_http_proxy", 0)]


def live(*targets: str, timeout: float = TIMEOUT_S) -> TransferPlan:
    """Return the plan of the servers at "grpc://host:port" or "host:port".

    A server knows only what it receives: name all of them for the whole plan. They are asked one after
    another, each for at most `timeout` seconds. Raises LiveError if a server cannot be reached, has no
    plugin, or returns no plan.
    """
    if not targets:
        raise LiveError("no server is named: give grpc://host:port")
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
        raise LiveError(f"{target!r} is not a server: give grpc://host:port, as for tf.Session")
    return address


def _ask(address: str, timeout: float) -> bytes:
    try:
        import grpc
    except ImportError:
        raise LiveError("--live and live() need grpcio: pip install grpcio") from None
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
        raise LiveError(f"{address} answered without a plan: {_NEEDED}")
    return bytes(response.transport_options.value)


def _why(address: str, error: Any, grpc: Any) -> str:
    code, details = error.code(), error.details()
    if code == grpc.StatusCode.UNAVAILABLE:
        return f"{address} cannot be reached ({details}): is the server running, and is the address right?"
    if code == grpc.StatusCode.DEADLINE_EXCEEDED:
        return f"{address} did not answer in time: is it a running TensorFlow server?"
    return f"{address} has no plan ({code.name}: {details}): {_NEEDED}"


@cache
def _messages() -> tuple[Any, Any]:
    """Return RecvBufRequest and RecvBufResponse, with the fields that are used here.

    TensorFlow's Python package does not include them. The field numbers are those of
    tensorflow/core/protobuf/worker.proto.
    """
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
