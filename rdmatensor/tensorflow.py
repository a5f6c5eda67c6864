# SPDX-License-Identifier: Apache-2.0
"""Controls and observes the TensorFlow plugin in this process.

The plugin needs no import: once rdmatensor is installed beside TensorFlow, `import tensorflow` loads it, and
`tf.distribute.Server(..., protocol="grpc+rdma")` uses it. This module configures it before the first server
is created, and shows afterwards what it did:

    import tensorflow as tf
    import rdmatensor.tensorflow

    rdmatensor.tensorflow.use(transport="verbs", require=True)
    server = tf.distribute.Server(cluster, "worker", 0, protocol="grpc+rdma")
    ...
    rdmatensor.tensorflow.stats()["paths"]["dynamic"]["sent_bytes"]

All functions may be called from any thread. Only `trace` imports TensorFlow.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
import sysconfig
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Literal, TypedDict

from . import config
from ._ops import tf_config
from ._ops.tracing import trace
from .device import Device
from .errors import Unsupported, UsageError

__all__ = [
    "ArenaUse",
    "ChecksumUse",
    "CollectiveCount",
    "CollectiveUse",
    "DeviceUse",
    "FetchCounters",
    "Fetches",
    "PathCounters",
    "Paths",
    "Peer",
    "PlacementUse",
    "PlanUse",
    "SlowEdge",
    "Stats",
    "loaded",
    "peers",
    "plan",
    "reset_stats",
    "slow_edges",
    "stats",
    "trace",
    "use",
    "why_not",
]

_PACKAGE = Path(__file__).resolve().parent
_PLUGINS = "librdmatensor_tensorflow_*.so"  # one per minor version of TensorFlow
_SHIM_NAME = "tensorflow-plugins/librdmatensor_shim.so"
# It lies beside the package or, in an editable install, where TensorFlow looks for plugins.
_SHIM = _PACKAGE.parent / _SHIM_NAME
if not _SHIM.exists():
    _SHIM = Path(sysconfig.get_path("platlib"), _SHIM_NAME)


class PathCounters(TypedDict):
    """Tensors that took one path since the process began or since `reset_stats`."""

    sent_tensors: int
    sent_bytes: int
    received_tensors: int
    received_bytes: int


class Paths(TypedDict):
    """Counters by path."""

    static: PathCounters
    """The sender knew the tensor's place at the receiver before the first step: `plan`."""
    bounded: PathCounters
    """The same for tensors of which only the largest size is known. Their shapes travel with them."""
    inline: PathCounters
    """The content travelled inside the notification."""
    dynamic: PathCounters
    """The receiver takes the content from the sender's memory; `Stats.fetched` says how."""
    bounce: PathCounters
    """The same as dynamic, after the sender had to copy the content to memory that peers can read."""
    rpc: PathCounters
    """TensorFlow's own RecvTensor."""


class FetchCounters(TypedDict):
    """Tensors whose bytes were fetched in one way."""

    tensors: int
    bytes: int


class Fetches(TypedDict):
    """How the bytes of tensors that arrived by `dynamic` or `bounce` were fetched."""

    in_place: FetchCounters
    """They were used in the sender's memory, over transports that can map it ("shm")."""
    read: FetchCounters
    """They were read into memory of this process."""


class PlanUse(TypedDict):
    """Events of planned tensors."""

    place_bytes: int
    """Memory that this process holds for tensors from its peers."""
    busy: int
    """Tensors that found no free place and took the dynamic path."""
    unfit: int
    """Tensors of another shape than planned, or larger than their place, which took the dynamic path."""
    copied: int
    """Tensors that were copied into registered memory first. On shm these are only reference variables, and
    only with RDMATENSOR_CHECKSUM."""
    fused: int
    """Tensors that travelled in groups."""
    groups: int
    """Groups of tensors that were sent."""
    mismatched: int
    """Edges about which the two ends disagree. A warning names the first."""
    over_budget: int
    """Edges without a place because of RDMATENSOR_PLAN_LIMIT."""
    promoted: int
    """Edges that got a place because of the sizes seen (RDMATENSOR_PROMOTE_AFTER)."""
    demoted: int
    """Promoted edges that lost their place again."""


class ArenaUse(TypedDict):
    """The memory of this process that peers may read. Nothing is reserved before a server exists."""

    active: bool
    limit_bytes: int
    regions: int
    """The number of its regions. It grows by one when they are full."""
    reserved_bytes: int
    """The size of its regions, which devices register and RDMA devices pin."""
    used_bytes: int
    peak_bytes: int
    exhausted_allocations: int
    """Requests that did not fit and got ordinary memory instead."""
    exhausted_bytes: int


class PlacementUse(TypedDict):
    """Where tensors that are too large to travel inline were allocated (RDMATENSOR_PLACEMENT).

    Only the mode "traced" has sites.
    """

    mode: Literal["arena", "traced"]
    traced_sites: int
    """Places in the program that allocated tensors."""
    marked_sites: int
    """Sites whose tensors were sent, so that the arena serves them."""
    arena_allocations: int
    arena_bytes: int
    plain_allocations: int
    """Allocations in ordinary memory, which no device pins."""
    plain_bytes: int
    late_sends: int
    """Copies (`Paths.bounce`) of tensors that were allocated before their site was marked."""
    unknown_sends: int
    """Copies of tensors of unknown sites: they were not allocated by TensorFlow, or before the first server,
    or while the arena was full."""


class ChecksumUse(TypedDict):
    """Tensors that RDMATENSOR_CHECKSUM=crc32c protects."""

    sent: int
    """Tensors that were sent with a checksum."""
    verified: int
    """Received tensors that match their checksum."""
    corrupted: int
    """Received tensors that do not match it. Each failed its step with DataLossError."""
    unchecked: int
    """Received tensors without a checksum, because checksums are off at their sender."""


class CollectiveCount(TypedDict):
    """Operations of one kind, and the bytes of their input or output, whichever is larger."""

    operations: int
    bytes: int


class CollectiveUse(TypedDict):
    """Collective operations, such as those of MultiWorkerMirroredStrategy."""

    operations: dict[str, CollectiveCount]
    """Operations that ran over grpc+rdma, by kind: "all_reduce", "broadcast", ..."""
    failed: int
    by_tensorflow: dict[str, int]
    """Operations that were left to TensorFlow's own algorithms, by reason."""
    served_by_grpc: dict[str, int]
    """"buffers" and "bytes" that peers fetched by gRPC for these."""
    groups: list[dict[str, Any]]
    """The groups of tasks, each with "members", "transport" ("rdmatensor" or "grpc") and "why", measured
    costs, and operations by algorithm."""


class Peer(TypedDict):
    """How tensors from ("receive") or to ("send") another task travel at present, and why."""

    task: str
    direction: Literal["receive", "send"]
    state: Literal["connecting", "ready", "rpc", "refused", "lost"]
    """"rpc": everything goes by RPC. "refused": everything would go by RPC, which RDMATENSOR_POLICY forbids.
    "lost": the task is gone; the next tensor from it finds its successor."""
    transport: str
    """"shm" or "verbs"; "grpc" if everything goes by RPC; "none" if nothing can travel."""
    why: str
    tensors: int
    """Tensors from or to the task, by any path, since the process began or since `reset_stats`."""
    bytes: int
    rpc_bytes: int
    """The bytes that went by RPC."""
    retry_in_ms: int | None
    """For "rpc" and "receive": the first tensor after this time starts another attempt to leave RPC, in the
    background (RDMATENSOR_FAILBACK_MS). None: there is no attempt until the task restarts."""
    failbacks: int
    """For "receive": how many of these attempts succeeded."""
    waits: int
    """For "receive": tensors that arrived after a consumer had asked for them."""
    wait_us: int
    """The sum of these waits. Simultaneous waits count separately."""


class SlowEdge(TypedDict):
    """How long consumers waited for an edge's tensors, from the request to the arrival."""

    edge: str
    """The name in the plan, "gradients/MatMul:0"; "" for all tensors of a task that no plan names."""
    source: str
    """The task that sends."""
    destination: str
    waits: int
    """Tensors that arrived after a consumer had asked for them."""
    wait_us: int
    longest_us: int


class DeviceUse(TypedDict):
    """The counters of a server's device, as in `rdmatensor.DeviceStats`."""

    task: str
    address: str
    writes: int
    write_bytes: int
    reads: int
    read_bytes: int
    notifies_sent: int
    notifies_received: int
    notify_bytes_sent: int
    notify_bytes_received: int
    queued: int
    """Batches of operations that had to wait for the peer's credit."""
    doorbells: int
    wakeups: int
    channels_opened: int
    channels_lost: int
    regions: int
    region_bytes: int
    pending: int
    """Requests to all peers that are not complete yet."""


class Stats(TypedDict):
    """The result of `stats`: plain dictionaries, lists, strings and numbers."""

    paths: Paths
    fetched: Fetches
    requests: int
    """Tensors that this process requested with RDMATENSOR_ABLATION=rpc; 0 without."""
    plan: PlanUse
    transports: dict[str, PathCounters]
    """Tensors and bytes by each transport other than RPC: {"shm": ...}."""
    arena: ArenaUse
    placement: PlacementUse
    collectives: CollectiveUse
    checksums: ChecksumUse
    rpc_reasons: dict[str, int]
    """Why sent tensors went by rpc: "string", "variant", "resource", "device memory", "arena full",
    "memory not registered", ..."""
    failbacks: int
    """The sum of `Peer.failbacks`."""
    peers: list[Peer]
    slow_edges: list[SlowEdge]
    """The 20 edges with the longest waits, the longest first."""
    devices: list[DeviceUse]
    """One for each server of this process."""
    servers: list[str]
    """The tasks of the grpc+rdma servers of this process."""


def loaded() -> bool:
    """True if this process has the plugin, so that `protocol="grpc+rdma"` works."""
    return _loaded_plugin() is not None


def why_not() -> str:
    """The reason why `loaded` is false, with the remedy; "" if it is true."""
    if loaded():
        return ""
    if not _SHIM.exists():
        return f"this installation of rdmatensor has no TensorFlow plugin: {_why_not_built()}"
    if "tensorflow" not in sys.modules:
        return "TensorFlow is not imported in this process: import tensorflow first"
    shim = _open_loaded(_SHIM)
    if shim is None:
        return (
            f"TensorFlow did not load {_SHIM}: its folder must be in a site-packages folder of this "
            "Python"
        )
    reason = ctypes.string_at(ctypes.addressof(ctypes.c_char.in_dll(shim, "rdt_shim_reason")))
    return reason.decode(errors="replace") or f"none of {_PACKAGE / _PLUGINS} is loaded"


def use(
    *,
    policy: Literal["auto", "rdma", "grpc"] | None = None,
    transport: str | Sequence[str] | None = None,
    require: bool = False,
    default_protocol: bool = False,
) -> None:
    """Chooses how servers of this process send tensors. Call it before the first server is created.

    `policy` and `transport` ("shm", "verbs" or both) set RDMATENSOR_POLICY and RDMATENSOR_TRANSPORTS for
    this process; None leaves them. `require` makes this call fail if grpc+rdma cannot work here, and sets the
    policy to "rdma": a peer that cannot be reached then fails its steps instead of being served by gRPC.

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
            "INVALID",
        )
    if require and policy == "grpc":
        raise UsageError('policy "grpc" contradicts require=True: drop one of them', "INVALID")
    if require and not loaded():
        raise Unsupported(f"grpc+rdma is required, but {why_not()}", "UNSUPPORTED")
    cluster = os.environ.get(tf_config.NAME, "")
    if default_protocol:
        try:
            cluster = tf_config.with_protocol(cluster, tf_config.PROTOCOL)
        except ValueError as error:
            raise UsageError(str(error), "INVALID") from None
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


def _put_in_force(policy: str, transport: str | Sequence[str]) -> None:
    names = transport.split(",") if isinstance(transport, str) else list(transport)
    table = {setting.name: setting for setting in config.table()}
    for name in names:
        if name not in (known := table["TRANSPORTS"].default.split(",")):
            raise UsageError(f"transport {name!r} not found; available: {known}", "INVALID")
    if policy not in (known := table["POLICY"].range.split("|")):
        raise UsageError(f"policy {policy!r} not found; available: {known}", "INVALID")
    config.set("POLICY", policy)
    config.set("TRANSPORTS", ",".join(names))


def peers() -> list[Peer]:
    """The tasks with which this process exchanges tensors, one entry for each direction.

    They are `stats()["peers"]`. Raises Unsupported if this process does not have the plugin.
    """
    return stats()["peers"]


def slow_edges(count: int = 20) -> list[SlowEdge]:
    """The edges with the longest waits in this process, at most 20: those of `stats()["slow_edges"]`.

    A wait ends when the tensor arrives, so it includes the time for which the sender computes. A slow edge
    that carries few bytes therefore shows for which task the others wait. Raises Unsupported if this
    process does not have the plugin.
    """
    return stats()["slow_edges"][:count]


def stats() -> Stats:
    """Counters by path, why tensors went by RPC, use of the arena, and how each peer is reached.

    Bytes are those of the tensors' contents. Raises Unsupported, with the reason of `why_not`, if this
    process does not have the plugin.
    """
    function = _plugin().rdt_tf_stats_json
    function.restype = ctypes.c_size_t
    function.argtypes = [ctypes.c_char_p, ctypes.c_size_t]
    text = _text(lambda out, size: int(function(out, size)))
    result: Stats = json.loads(text or "{}")
    return result


def _text(function: Callable[[Any, int], int]) -> str | None:
    """The text that a C function writes, which returns the size that it needs; None if it returns 0.

    The text may quote a peer, which may send any bytes.
    """
    size = function(None, 0)
    while size:
        # The text may have grown since it was measured.
        text = ctypes.create_string_buffer(size + 1024)
        size = function(text, len(text))
        if size <= len(text):
            return text.value.decode(errors="replace")
    return None


def plan(task: str | None = None) -> dict[str, Any]:
    """The plan in force for the tensors that `task` of this process receives.

    `task` is the full name of one of its servers, "/job:worker/replica:0/task:0"; None means its only
    server. `graph_analyzer.TransferPlan.from_json` reads the same format. Raises Unsupported if this
    process does not have the plugin, and UsageError if it has no such grpc+rdma server.
    """
    function = _plugin().rdt_tf_plan_json
    function.restype = ctypes.c_size_t
    function.argtypes = [ctypes.c_char_p, ctypes.c_char_p, ctypes.c_size_t]
    name = None if task is None else task.encode()
    text = _text(lambda out, size: int(function(name, out, size)))
    if text is None:
        wanted = task or "one, and only one, server"
        raise UsageError(f"this process does not run {wanted} with protocol grpc+rdma", "INVALID")
    result: dict[str, Any] = json.loads(text)
    return result


def reset_stats() -> None:
    """Sets all counters to zero, but keeps the state of peers and of the arena.

    Raises Unsupported if this process does not have the plugin.
    """
    _plugin().rdt_tf_stats_reset()


def _plugin() -> ctypes.CDLL:
    library = _loaded_plugin()
    if library is None:
        raise Unsupported(f"the TensorFlow plugin is not loaded: {why_not()}", "UNSUPPORTED")
    return library


def _loaded_plugin() -> ctypes.CDLL | None:
    """The plugin that the shim loaded, if any."""
    found = map(_open_loaded, sorted(_PACKAGE.glob(_PLUGINS)))
    return next((library for library in found if library is not None), None)


def _open_loaded(path: Path) -> ctypes.CDLL | None:
    """The library if this process has already loaded it."""
    try:
        return ctypes.CDLL(str(path), mode=os.RTLD_NOW | os.RTLD_NOLOAD)
    except OSError:
        return None


@cache
def _why_not_built() -> str:
    try:
        facts = json.loads((_PACKAGE / "_build_info.json").read_text())
    except (OSError, ValueError):
        return "it does not come from rdmatensor's own build"
    return str(facts.get("no_tensorflow_because") or "it was removed after the build")
