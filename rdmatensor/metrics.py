# SPDX-License-Identifier: Apache-2.0
"""Prometheus metrics of this process: an endpoint that a Prometheus server, or `rdmatensor top`, reads.

    import rdmatensor.metrics

    rdmatensor.metrics.serve()         # if RDMATENSOR_METRICS_PORT is set; otherwise it does nothing

A program that has its own endpoint adds ours to it:

    prometheus_client.REGISTRY.register(rdmatensor.metrics.collector())

Needs prometheus-client: pip install 'rdmatensor[metrics]'. Nothing here imports TensorFlow.
"""

from __future__ import annotations

import contextlib
import os
import runpy
import sys
import threading
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING
from wsgiref.simple_server import WSGIServer

from . import config
from ._ffi import lib
from .errors import DeviceError, Unsupported, UsageError

if TYPE_CHECKING:
    from prometheus_client.core import Metric

__all__ = ["Collector", "Endpoint", "collector", "serve"]

_INSTALL = "metrics need prometheus-client: pip install 'rdmatensor[metrics]'"


class Collector:
    """What prometheus_client's registries take: reads the counters whenever it is asked."""

    def collect(self) -> Iterable[Metric]:
        """All metrics as they are now. From any thread."""
        from ._ops import families

        return families.families()


class Endpoint:
    """A port that answers with this process's metrics, on a daemon thread, until `close` or its end."""

    def __init__(self, server: WSGIServer) -> None:
        self._server = server
        host, port = server.server_address[:2]
        shown = str(host)
        self.address = f"[{shown}]:{port}" if ":" in shown else f"{shown}:{port}"
        """ "127.0.0.1:9100"."""
        self.port = int(port)

    def close(self) -> None:
        """Stops answering. Any number of times, from any thread."""
        global _endpoint
        with _lock:
            if _endpoint is self:
                _endpoint = None
        self._server.shutdown()
        self._server.server_close()


# The one of METRICS_PORT.
_endpoint: Endpoint | None = None
_lock = threading.Lock()


def collector() -> Collector:
    """The metrics of this process, for a registry of prometheus_client.

    Unsupported, with the remedy, if that is not installed.
    """
    try:
        import prometheus_client  # noqa: F401
    except ImportError:
        raise Unsupported(_INSTALL, "UNSUPPORTED") from None
    return Collector()


def serve(port: int | None = None, address: str | None = None) -> Endpoint | None:
    """Answers Prometheus at http://`address`:`port`/metrics from now on.

    Without `port` that of the setting METRICS_PORT; None, and nothing is done, if that is 0. So programs may
    call it always, also more than once. `port` 0 takes any free one. Without `address` that of
    METRICS_ADDRESS: 127.0.0.1, which only this machine reaches. Everybody who reaches the port can read the
    metrics; there is no password.

    Raises Unsupported without prometheus-client, DeviceError if the port cannot be listened on, UsageError
    for a port that is none.
    """
    global _endpoint
    configured = port is None
    if port is None:
        port = config.get_int("METRICS_PORT")
        if port == 0:
            return None
    if address is None:
        address = config.get("METRICS_ADDRESS")
    with _lock:
        if configured and _endpoint is not None:
            return _endpoint
        endpoint = _listen(port, address)
        if configured:
            _endpoint = endpoint
    lib.rdt_log_line(lib.RDT_LOG_INFO, f"metrics: http://{endpoint.address}/metrics".encode())
    return endpoint


def _listen(port: int, address: str) -> Endpoint:
    if not 0 <= port <= 65535:
        raise UsageError(f"metrics: there is no TCP port {port}: choose 1..65535", "INVALID")
    registered = collector()
    from prometheus_client import CollectorRegistry, start_http_server

    registry = CollectorRegistry()
    registry.register(registered)
    try:
        server, _ = start_http_server(port, address, registry)
    except OSError as error:
        raise DeviceError(
            f"metrics: cannot listen on {address} port {port}: {error.strerror or error}: choose another "
            "port (RDMATENSOR_METRICS_PORT) or address (RDMATENSOR_METRICS_ADDRESS)",
            "SYSTEM",
        ) from error
    endpoint = Endpoint(server)
    # A child has no thread that answers, but would keep the port after its parent's end.
    os.register_at_fork(after_in_child=lambda: _forget(server))
    return endpoint


def _forget(server: WSGIServer) -> None:
    global _endpoint, _lock
    _endpoint, _lock = None, threading.Lock()
    with contextlib.suppress(OSError):
        server.socket.close()


def run(arguments: Sequence[str]) -> None:
    """Serves, then runs a program as `python PROGRAM ARGUMENTS` would. Does not return before its end.

    For programs that do not call `serve`: `python -m rdmatensor.metrics train.py`. DeviceError and the like
    as `serve`; what the program raises.
    """
    serve()
    sys.argv = [*arguments]
    sys.path.insert(0, str(Path(arguments[0]).resolve().parent))
    runpy.run_path(arguments[0], run_name="__main__")


if __name__ == "__main__":
    if len(sys.argv) < 2:
        raise SystemExit("usage: python -m rdmatensor.metrics PROGRAM [ARGUMENTS]")
    # That one, which other modules import, and not this copy of it.
    from rdmatensor import metrics

    if not getattr(sys.flags, "safe_path", False):
        del sys.path[0]  # this folder, in which `python PROGRAM` would not look
    metrics.run(sys.argv[1:])
