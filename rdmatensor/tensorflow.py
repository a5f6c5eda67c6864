# SPDX-License-Identifier: Apache-2.0
"""Control and observe the TensorFlow plugin in this process.

The plugin needs no import: once rdmatensor is installed beside TensorFlow, `import tensorflow` loads it, and
`tf.distribute.Server(..., protocol="grpc+rdma")` uses it. This module configures it before the first server
is created, and shows afterwards what it did:

    import tensorflow as tf
    import rdmatensor.tensorflow

    rdmatensor.tensorflow.use(transport="verbs", require=True)
    server = tf.distribute.Server(cluster, "worker", 0, protocol="grpc+rdma")
    ...
    rdmatensor.tensorflow.stats()["paths"]["dynamic"]["sent_bytes"]

All functions may be called from any thread. Only `trace` and `repair_keras` import TensorFlow.
"""

from __future__ import annotations

import ctypes
import json
import os
from collections.abc import Sequence
from typing import Any, Literal

from . import config
from ._api.counters import (
    ArenaUse,
    ChecksumUse,
    CollectiveCount,
    CollectiveUse,
    ControlUse,
    DeviceUse,
    FetchCounters,
    Fetches,
    PathCounters,
    Paths,
    Peer,
    PlanUse,
    RowUse,
    SlowEdge,
    Stats,
)
from ._api.plugin import library, loaded, stats, text_of, why_not
from ._tools import keras_fit, tf_config
from ._tools.tracing import trace
from .device import Device
from .errors import Unsupported, UsageError

__all__ = [
    "ArenaUse",
    "ChecksumUse",
    "CollectiveCount",
    "CollectiveUse",
    "ControlUse",
    "DeviceUse",
    "FetchCounters",
    "Fetches",
    "PathCounters",
    "Paths",
    "Peer",
    "PlanUse",
    "RowUse",
    "SlowEdge",
    "Stats",
    "loaded",
    "peers",
    "plan",
    "repair_keras",
    "reset_stats",
    "slow_edges",
    "stats",
    "trace",
    "use",
    "why_not",
]


def use(
    *,
    policy: Literal["auto", "rdma", "grpc"] | None = None,
    transport: str | Sequence[str] | None = None,
    require: bool = False,
    default_protocol: bool = False,
) -> None:
    """Choose how servers of this process send tensors. Call it before the first server is created.

    `policy` and `transport` (some of "shm", "verbs" and "tcp") set RDMATENSOR_POLICY and
    RDMATENSOR_TRANSPORTS for this process; None leaves them. `require` makes this call fail if grpc+rdma
    cannot work here, and sets the policy to "rdma": a peer that cannot be reached then fails its steps
    instead of being served by gRPC.

    `default_protocol` is for launchers, such as Kubeflow and Ray, that set TF_CONFIG without a protocol. It
    adds "rpc_layer": "grpc+rdma" to this process's TF_CONFIG unless that names a protocol already, so that
    `TFConfigClusterResolver` and strategies use it. Without TF_CONFIG it changes nothing. All tasks of a
    cluster must make the call.

    Raises UsageError for unknown names, for `require` with policy "grpc", if a server exists already, and if
    `default_protocol` finds a TF_CONFIG that is not a JSON object. With `require` it also raises Unsupported
    or DeviceError, with the reason, if this process has no plugin or no wanted transport is usable.
    """
    if loaded() and (servers := stats()["servers"]):
        raise UsageError(
            f"{servers[0]} is running already: call use() before the first server is created, and before "
            "connect_to_cluster or a strategy, which create one",
        )
    if require and policy == "grpc":
        raise UsageError('policy "grpc" contradicts require=True: drop one of them')
    if require and not loaded():
        raise Unsupported(f"grpc+rdma is required, but {why_not()}", "UNSUPPORTED")
    cluster = os.environ.get(tf_config.NAME, "")
    if default_protocol:
        try:
            cluster = tf_config.with_protocol(cluster, tf_config.PROTOCOL)
        except ValueError as error:
            raise UsageError(str(error)) from None
    before = config.get("POLICY"), config.get("TRANSPORTS")
    try:
        _put_in_force(policy or ("rdma" if require else before[0]), transport or before[1])
        if require:
            Device(name="rdmatensor.tensorflow.use").close()
    except BaseException:
        _put_in_force(*before)
        raise
    if cluster:
        os.environ[tf_config.NAME] = cluster


def repair_keras() -> None:
    """Make `fit` and `evaluate` of Keras 3 work under MultiWorkerMirroredStrategy in this process.

    Stock Keras 3 fails there over any protocol. Call it before `fit`; a second call changes nothing. It
    replaces two functions of Keras: the mean of a step's results over all workers, and the batch from which
    a model is built. Raises Unsupported if Keras is not version 3, or if this version has no such functions.
    """
    keras_fit.repair()


def _put_in_force(policy: str, transport: str | Sequence[str]) -> None:
    names = transport.split(",") if isinstance(transport, str) else list(transport)
    table = {setting.name: setting for setting in config.table()}
    for name in names:
        if name not in (known := table["TRANSPORTS"].default.split(",")):
            raise UsageError(f"transport {name!r} not found; available: {known}")
    if policy not in (known := table["POLICY"].range.split("|")):
        raise UsageError(f"policy {policy!r} not found; available: {known}")
    config.set("POLICY", policy)
    config.set("TRANSPORTS", ",".join(names))


def peers() -> list[Peer]:
    """Return the tasks with which this process exchanges tensors, one entry for each direction.

    They are `stats()["peers"]`. Raises Unsupported if this process does not have the plugin.
    """
    return stats()["peers"]


def slow_edges(count: int = 20) -> list[SlowEdge]:
    """Return the edges with the longest waits in this process, at most 20: `stats()["slow_edges"]`.

    A wait ends when the tensor arrives, so it includes the time for which the sender computes. A slow edge
    that carries few bytes therefore shows for which task the others wait. Raises Unsupported if this process
    does not have the plugin.
    """
    return stats()["slow_edges"][:count]


def plan(task: str | None = None) -> dict[str, Any]:
    """Return the plan in force for the tensors that `task` of this process receives.

    `task` is the full name of one of its servers, "/job:worker/replica:0/task:0"; None means its only
    server. `graph_analyzer.TransferPlan.from_json` reads the same format. Raises Unsupported if this process
    does not have the plugin, and UsageError if it has no such grpc+rdma server.
    """
    function = library().rdt_tf_plan_json
    function.restype = ctypes.c_size_t
    function.argtypes = [ctypes.c_char_p, ctypes.c_char_p, ctypes.c_size_t]
    name = None if task is None else task.encode()
    text = text_of(lambda out, size: int(function(name, out, size)))
    if text is None:
        wanted = task or "one, and only one, server"
        raise UsageError(f"this process does not run {wanted} with protocol grpc+rdma")
    result: dict[str, Any] = json.loads(text)
    return result


def reset_stats() -> None:
    """Set all counters to zero, but keep the state of peers and of the arena.

    Raises Unsupported if this process does not have the plugin.
    """
    library().rdt_tf_stats_reset()
