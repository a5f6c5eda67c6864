# SPDX-License-Identifier: Apache-2.0
"""Asking a server for its plan: how it is asked, and what is told when there is none.

That plans of servers with the plugin are those made beforehand is tested in tests/plugin.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator
from concurrent import futures
from dataclasses import replace
from typing import Any

import grpc
import pytest

from graph_analyzer import LiveError, TransferPlan, live
from support.stock_servers import Cluster


def varint(number: int) -> bytes:
    rest, low = number >> 7, number & 0x7F
    return bytes([low | 0x80]) + varint(rest) if rest else bytes([low])


def field(number: int, content: bytes) -> bytes:
    """A field of bytes in protobuf's encoding."""
    return varint(number << 3 | 2) + varint(len(content)) + content


class Answering:
    """A gRPC server that has RecvBuf, with an answer given as bytes. It knows nothing of protobuf."""

    def __init__(self) -> None:
        self.answer = b""
        self.requests: list[bytes] = []
        self._server = grpc.server(
            futures.ThreadPoolExecutor(1), options=[("grpc.max_send_message_length", -1)]
        )
        handler: Any = grpc.unary_unary_rpc_method_handler(self._recv_buf)
        service = grpc.method_handlers_generic_handler(
            "tensorflow.WorkerService", {"RecvBuf": handler}
        )
        self._server.add_generic_rpc_handlers((service,))
        self.address = f"127.0.0.1:{self._server.add_insecure_port('127.0.0.1:0')}"
        self._server.start()

    def _recv_buf(self, request: bytes, context: Any) -> bytes:
        self.requests.append(request)
        return self.answer

    def close(self) -> None:
        self._server.stop(None).wait()


@pytest.fixture
def answering() -> Iterator[Answering]:
    server = Answering()
    yield server
    server.close()


def test_plan_of_a_server(answering: Answering, plan: TransferPlan) -> None:
    # More than the 4 MB that gRPC accepts by default.
    many = tuple(
        replace(edge, name=f"{edge.name}/{n:05}") for edge in plan.edges for n in range(1500)
    )
    large = replace(plan, edges=tuple(sorted(many, key=lambda edge: edge.key)))
    text = large.to_json().encode()
    assert len(text) > 5 << 20
    options = field(1, b"rdmatensor.plan") + field(2, text)
    answering.answer = field(4, options)
    assert live(f"grpc://{answering.address}") == large
    assert live(answering.address) == large
    first, second = answering.requests
    assert field(2, b"rdmatensor.plan") in first
    assert field(7, field(1, b"rdmatensor.plan")) in first
    assert field(8, b"rdmatensor.plan") in first
    # TensorFlow drops requests whose id it has seen.
    assert first != second


@pytest.mark.parametrize("answer", [b"", field(4, field(1, b"other") + field(2, b"{}"))])
def test_answers_without_a_plan(answering: Answering, answer: bytes) -> None:
    answering.answer = answer
    with pytest.raises(LiveError, match=r"without a plan.* needs rdmatensor"):
        live(answering.address)


def test_answers_that_are_no_message(answering: Answering) -> None:
    answering.answer = b"\xff"
    with pytest.raises(LiveError, match="has no plan"):
        live(answering.address)


def test_servers_without_the_plugin(cluster: Cluster) -> None:
    with pytest.raises(LiveError, match=r"has no plan .*grpc\+rdma"):
        live(cluster.target)


def test_nobody_listens() -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        address = f"127.0.0.1:{closed.getsockname()[1]}"
    with pytest.raises(LiveError, match=f"{address} cannot be reached"):
        live(address)


def test_somebody_listens_and_says_nothing() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        with pytest.raises(LiveError, match=r"did not answer in time|cannot be reached"):
            live(f"127.0.0.1:{port}", timeout=0.5)


@pytest.mark.parametrize("target", ["", "host", "http://host:1", "host:port", ":1"])
def test_targets_that_are_none(target: str) -> None:
    with pytest.raises(LiveError, match="is not a server: give grpc://host:port"):
        live(target)
