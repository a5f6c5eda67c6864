# SPDX-License-Identifier: Apache-2.0
"""Prometheus metrics of this process, which a Prometheus server or `rdmatensor top` reads.

    import rdmatensor.metrics

    rdmatensor.metrics.serve()         # does nothing unless RDMATENSOR_METRICS is set

A program with an endpoint of its own adds these metrics to it:

    prometheus_client.REGISTRY.register(rdmatensor.metrics.collector())

This module needs prometheus-client (pip install 'rdmatensor[metrics]'), and does not import TensorFlow.
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
    """A collector for registries of prometheus_client, which reads the counters on request."""

    def collect(self) -> Iterable[Metric]:
        """Return the current metrics. Thread-safe."""
        from ._tools import families

        return families.families()


class Endpoint:
    """A port at which a daemon thread serves the metrics of this process until `close`."""

    def __init__(self, server: WSGIServer) -> None:
        self._server = server
        host, port = server.server_address[:2]
        shown = str(host)
        self.address = f"[{shown}]:{port}" if ":" in shown else f"{shown}:{port}"
        """ "127.0.0.1:9100"."""
        self.port = int(port)

    def close(self) -> None:
        """Stop serving. May be called repeatedly and from any thread."""
        global _endpoint
        with _lock:
            if _endpoint is self:
                _endpoint = None
        self._server.shutdown()
        self._server.server_close()


# The endpoint at METRICS.
_endpoint: Endpoint | None = None
_lock = threading.Lock()


def collector() -> Collector:
    """Return a collector of this process's metrics, for a registry of prometheus_client.

    Raises Unsupported if prometheus_client is not installed.
    """
    try:
        import prometheus_client  # noqa: F401
    except ImportError:
        raise Unsupported(_INSTALL, "UNSUPPORTED") from None
    return Collector()


def serve(port: int | None = None, address: str | None = None) -> Endpoint | None:
    """Serve the metrics at http://`address`:`port`/metrics.

    The setting METRICS, [ADDRESS:]PORT, has the defaults. If it is empty and no port is given, the call does
    nothing and returns None, so every program may call it, and more than once. Port 0 chooses a free port.
    Without an address only this machine can reach it. There is no password: everyone who can reach the port
    can read the metrics.

    Raises Unsupported without prometheus-client, DeviceError if it cannot listen, and UsageError for an
    invalid port.
    """
    global _endpoint
    configured = port is None
    default_address, _, default_port = config.get("METRICS").rpartition(":")
    if port is None:
        if not default_port:
            return None
        if not default_port.isdecimal():
            raise UsageError(
                f"metrics: RDMATENSOR_METRICS has no TCP port: {default_port!r}", "INVALID"
            )
        port = int(default_port)
    if address is None:
        address = default_address.strip("[]") or "127.0.0.1"
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
        raise UsageError(f"metrics: there is no TCP port {port}: choose 1..65535")
    registered = collector()
    from prometheus_client import CollectorRegistry, start_http_server

    registry = CollectorRegistry()
    registry.register(registered)
    try:
        server, _ = start_http_server(port, address, registry)
    except OSError as error:
        raise DeviceError(
            f"metrics: cannot listen on {address} port {port}: {error.strerror or error}: choose another "
            "port or address (RDMATENSOR_METRICS)",
            "SYSTEM",
        ) from error
    endpoint = Endpoint(server)
    # A forked child has no serving thread, but would keep the port open after its parent has ended.
    os.register_at_fork(after_in_child=lambda: _forget(server))
    return endpoint


def _forget(server: WSGIServer) -> None:
    global _endpoint, _lock
    _endpoint, _lock = None, threading.Lock()
    with contextlib.suppress(OSError):
        server.socket.close()


def run(arguments: Sequence[str]) -> None:
    """Serve the metrics, and run a program to its end as `python PROGRAM ARGUMENTS` does.

    PROGRAM may be `-m MODULE`. This is for programs that do not call `serve`: `python -m rdmatensor.metrics
    train.py`. Raises what `serve` and the program raise.
    """
    serve()
    if arguments[0] == "-m":
        sys.argv = [*arguments[1:]]
        sys.path.insert(0, str(Path.cwd()))
        runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
        return
    sys.argv = [*arguments]
    sys.path.insert(0, str(Path(arguments[0]).resolve().parent))
    runpy.run_path(arguments[0], run_name="__main__")


if __name__ == "__main__":
    if len(sys.argv) < 2:
        raise SystemExit("usage: python -m rdmatensor.metrics PROGRAM [ARGUMENTS]")
    # Use the module that others import, not this copy of it.
    from rdmatensor import metrics

    if not getattr(sys.flags, "safe_path", False):
        del sys.path[0]  # `python PROGRAM` does not search the current folder
    metrics.run(sys.argv[1:])
