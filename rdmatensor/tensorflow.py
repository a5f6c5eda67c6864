# SPDX-License-Identifier: Apache-2.0
"""What the TensorFlow plugin does in this process.

The plugin needs no import: installing rdmatensor beside TensorFlow makes `import tensorflow` load it,
and `tf.distribute.Server(..., protocol="grpc+rdma")` uses it. This module chooses how, before the first
server, and looks at it afterwards:

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
_PLUGINS = "librdmatensor_tensorflow_*.so"  # one for each minor version of TensorFlow
_SHIM_NAME = "tensorflow-plugins/librdmatensor_shim.so"
# Beside the package, or, if that is installed editable, where TensorFlow looks for it.
_SHIM = _PACKAGE.parent / _SHIM_NAME
if not _SHIM.exists():
    _SHIM = Path(sysconfig.get_path("platlib"), _SHIM_NAME)


class PathCounters(TypedDict):
    """Tensors that took one path since the process began or `reset_stats`."""

    sent_tensors: int
    sent_bytes: int
    received_tensors: int
    received_bytes: int


class Paths(TypedDict):
    """Counters by path."""

    static: PathCounters
    """The sender knew the tensor's place at the receiver before the first step: `plan`."""
    bounded: PathCounters
    """The same for tensors of which only the largest size is known; their shapes travel with them."""
    inline: PathCounters
    """The content travelled inside the message."""
    dynamic: PathCounters
    """The receiver takes the content from the sender's memory; `Stats.fetched` says how."""
    bounce: PathCounters
    """As dynamic, after the sender had to copy the content to where it can be read."""
    rpc: PathCounters
    """TensorFlow's own RecvTensor."""


class FetchCounters(TypedDict):
    """Tensors whose bytes were got in one way."""

    tensors: int
    bytes: int


class Fetches(TypedDict):
    """How the bytes of tensors that arrived by `dynamic` or `bounce` were got."""

    in_place: FetchCounters
    """Used where they lie, in the sender's memory (transports that can map it: "shm")."""
    read: FetchCounters
    """Read into memory of this process."""


class PlanUse(TypedDict):
    """What happened to planned tensors."""

    place_bytes: int
    """Memory that this process holds for what its peers will send."""
    busy: int
    """Tensors that found no free place, and took the dynamic path."""
    unfit: int
    """Tensors of another shape than was planned, or larger than their place; likewise."""
    copied: int
    """Tensors that did not lie in registered memory, and were copied there first (on shm only reference
    variables, and those only with RDMATENSOR_CHECKSUM)."""
    fused: int
    """Tensors that travelled in groups."""
    groups: int
    """Groups that were sent."""
    mismatched: int
    """Edges that both ends understand differently: a warning names the first."""
    over_budget: int
    """Edges without a place because of RDMATENSOR_PLAN_LIMIT."""
    promoted: int
    """Edges that got a place because of the sizes seen (RDMATENSOR_PROMOTE_AFTER)."""
    demoted: int
    """Those of them that lost it again."""


class ArenaUse(TypedDict):
    """The memory of this process that peers may read; nothing is reserved before a server exists."""

    active: bool
    limit_bytes: int
    regions: int
    """Pieces it consists of; it grows by one when they are full."""
    reserved_bytes: int
    """Their sizes: what devices register, and RDMA devices pin."""
    used_bytes: int
    peak_bytes: int
    exhausted_allocations: int
    """Requests that did not fit and got ordinary memory."""
    exhausted_bytes: int


class PlacementUse(TypedDict):
    """What RDMATENSOR_PLACEMENT does: which tensors that are too large to travel inline are allocated
    in the arena. Only "traced" has sites."""

    mode: Literal["arena", "traced"]
    traced_sites: int
    """Places in the program that allocated tensors."""
    marked_sites: int
    """Those whose tensors were sent, so that the arena serves them."""
    arena_allocations: int
    arena_bytes: int
    plain_allocations: int
    """What got ordinary memory, which no device pins."""
    plain_bytes: int
    late_sends: int
    """Copies (`Paths.bounce`) of tensors that were allocated before their site was marked."""
    unknown_sends: int
    """Copies of tensors whose site is not known: allocated by others than TensorFlow, before the
    first server, or when the arena was full."""


class ChecksumUse(TypedDict):
    """What RDMATENSOR_CHECKSUM=crc32c did."""

    sent: int
    """Tensors whose checksum was sent along."""
    verified: int
    """Received tensors that have the checksum that came with them."""
    corrupted: int
    """Those that have not: each failed its step with DataLossError."""
    unchecked: int
    """Received tensors that came without one, because it is off at their sender."""


class CollectiveCount(TypedDict):
    """Operations of one kind, and their bytes: of input or output, whichever is more."""

    operations: int
    bytes: int


class CollectiveUse(TypedDict):
    """Collective operations, such as those of MultiWorkerMirroredStrategy."""

    operations: dict[str, CollectiveCount]
    """Those that ran over grpc+rdma, by kind: "all_reduce", "broadcast", ..."""
    failed: int
    by_tensorflow: dict[str, int]
    """Those that were left to TensorFlow's own algorithms, by reason."""
    served_by_grpc: dict[str, int]
    """"buffers" and "bytes" that peers fetched by gRPC meanwhile."""
    groups: list[dict[str, Any]]
    """The groups of tasks: "members", "transport" ("rdmatensor" or "grpc") and "why", measured costs, and
    operations by algorithm."""


class Peer(TypedDict):
    """How tensors from ("receive") or to ("send") another task travel at present, and why so."""

    task: str
    direction: Literal["receive", "send"]
    state: Literal["connecting", "ready", "rpc", "refused", "lost"]
    """"rpc": everything goes by RPC. "refused": RDMATENSOR_POLICY forbids that. "lost": the task is
    gone; the next tensor from it finds its successor."""
    transport: str
    """"shm" or "verbs"; "grpc" when everything goes by RPC; "none" when nothing can go."""
    why: str
    tensors: int
    """What came from or went to the task, by any way, since the process began or `reset_stats`."""
    bytes: int
    rpc_bytes: int
    """How many of them went by RPC."""
    retry_in_ms: int | None
    """"rpc", "receive": the first tensor after this time makes the task be tried again, in the
    background (RDMATENSOR_FAILBACK_MS). None: it is not, until it is restarted."""
    failbacks: int
    """"receive": how often such an attempt succeeded, so that tensors went by a transport again."""
    waits: int
    """"receive": tensors that were asked for before they were there, and came."""
    wait_us: int
    """How long they were waited for, added up: waits at the same time count each."""


class SlowEdge(TypedDict):
    """How long an edge's tensors were waited for, from when a consumer asked until they were there."""

    edge: str
    """As the plan names it, "gradients/MatMul:0"; "" for all of a task that no plan names."""
    source: str
    """The task that was waited for."""
    destination: str
    waits: int
    """Tensors that were waited for; those that were there before anybody asked are none."""
    wait_us: int
    longest_us: int


class DeviceUse(TypedDict):
    """What the device of a server counts: the fields of `rdmatensor.DeviceStats`."""

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
    """Batches of operations that had to wait for a credit of the peer."""
    doorbells: int
    wakeups: int
    channels_opened: int
    channels_lost: int
    regions: int
    region_bytes: int
    pending: int
    """Requests to all peers that are not complete at present."""


class Stats(TypedDict):
    """What `stats` returns: plain dictionaries, lists, strings and numbers."""

    paths: Paths
    fetched: Fetches
    requests: int
    """Tensors that this process asked for, with RDMATENSOR_ABLATION=rpc; otherwise none is asked for."""
    plan: PlanUse
    transports: dict[str, PathCounters]
    """Tensors and bytes that went by each transport instead of RPC: {"shm": ...}."""
    arena: ArenaUse
    placement: PlacementUse
    collectives: CollectiveUse
    checksums: ChecksumUse
    rpc_reasons: dict[str, int]
    """Why sent tensors went by rpc: "string", "variant", "resource", "device memory", "arena full",
    "memory not registered", ..."""
    failbacks: int
    """Sum of `Peer.failbacks`."""
    peers: list[Peer]
    slow_edges: list[SlowEdge]
    """The 20 edges that were waited for longest, the longest first."""
    devices: list[DeviceUse]
    """Of the servers of this process."""
    servers: list[str]
    """The grpc+rdma servers of this process, by task."""


def loaded() -> bool:
    """True if the plugin is in this process, so that `protocol="grpc+rdma"` works."""
    return _loaded_plugin() is not None


def why_not() -> str:
    """Why `loaded` is false, in words with the remedy; "" if it is true."""
    if loaded():
        return ""
    if not _SHIM.exists():
        return f"this installation of rdmatensor has no TensorFlow plugin: {_why_not_built()}"
    if "tensorflow" not in sys.modules:
        return "TensorFlow is not imported in this process: import tensorflow first"
    shim = _open_loaded(_SHIM)
    if shim is None:
        return (
            f"TensorFlow did not load {_SHIM}: its folder must be in one of the site-packages "
            "folders of this Python"
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
    """Chooses how the servers that this process will create send tensors. Call it before the first.

    `policy` and `transport` ("shm", "verbs" or both) set RDMATENSOR_POLICY and RDMATENSOR_TRANSPORTS for
    this process; None leaves them. With `require` this call fails if grpc+rdma cannot work here, and a peer
    that cannot be reached fails its steps, instead of being served by gRPC: the policy becomes "rdma".

    `default_protocol` is for launchers that set TF_CONFIG and name no protocol in it, such as Kubeflow and
    Ray: where this process's TF_CONFIG has no "rpc_layer", it is "grpc+rdma" from now on, for
    `TFConfigClusterResolver` and for the strategies that ask it. A protocol that is named stays. Without
    TF_CONFIG there is no cluster, and nothing changes. All tasks of a cluster have to make the call.

    Raises UsageError for unknown names, if `require` meets policy "grpc", if a server exists already, and if
    `default_protocol` meets a TF_CONFIG that is no JSON object; with `require` also Unsupported or
    DeviceError, with the reason, if the plugin is not in this process or no wanted transport is usable.
    """
    if loaded() and (servers := stats()["servers"]):
        raise UsageError(
            f"{servers[0]} runs already: call use() before the first server is created, and before "
            "connect_to_cluster or a strategy, which create one",
            "INVALID",
        )
    if require and policy == "grpc":
        raise UsageError('policy "grpc" sends nothing otherwise: drop it, or require', "INVALID")
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
            raise UsageError(f"there is no transport {name!r}: choose from {known}", "INVALID")
    if policy not in (known := table["POLICY"].range.split("|")):
        raise UsageError(f"there is no policy {policy!r}: choose from {known}", "INVALID")
    config.set("POLICY", policy)
    config.set("TRANSPORTS", ",".join(names))


def peers() -> list[Peer]:
    """The tasks that this process exchanges tensors with, one entry for each direction.

    Those of `stats`. Raises Unsupported if the plugin is not in this process.
    """
    return stats()["peers"]


def slow_edges(count: int = 20) -> list[SlowEdge]:
    """The edges whose tensors this process waited for longest, at most 20: those of `stats`.

    A wait ends when the tensor is there. So it counts what the sender computed meanwhile, too: an edge that
    is slow although little is sent tells whom the others wait for. Raises Unsupported if the plugin is not
    in this process.
    """
    return stats()["slow_edges"][:count]


def stats() -> Stats:
    """Counters by path, why tensors went by RPC, use of the arena, and how each peer is reached.

    Bytes count tensor contents. Raises Unsupported, with the reason of `why_not`, if the plugin is
    not in this process.
    """
    function = _plugin().rdt_tf_stats_json
    function.restype = ctypes.c_size_t
    function.argtypes = [ctypes.c_char_p, ctypes.c_size_t]
    text = _text(lambda out, size: int(function(out, size)))
    result: Stats = json.loads(text or "{}")
    return result


def _text(function: Callable[[Any, int], int]) -> str | None:
    """What a C function writes that returns the size it needs; None for 0. It may quote a peer, who may
    send any bytes."""
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
    server. The format is that of `graph_analyzer.TransferPlan.from_json`. Raises Unsupported if the
    plugin is not in this process, UsageError if the process has no such grpc+rdma server.
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
    """Sets all counters to zero; what is known about peers and the arena stays.

    Raises Unsupported if the plugin is not in this process.
    """
    _plugin().rdt_tf_stats_reset()


def _plugin() -> ctypes.CDLL:
    library = _loaded_plugin()
    if library is None:
        raise Unsupported(f"the TensorFlow plugin is not loaded: {why_not()}", "UNSUPPORTED")
    return library


def _loaded_plugin() -> ctypes.CDLL | None:
    """The plugin that the shim chose, if it did."""
    found = map(_open_loaded, sorted(_PACKAGE.glob(_PLUGINS)))
    return next((library for library in found if library is not None), None)


def _open_loaded(path: Path) -> ctypes.CDLL | None:
    """The library if this process has it already."""
    try:
        return ctypes.CDLL(str(path), mode=os.RTLD_NOW | os.RTLD_NOLOAD)
    except OSError:
        return None


@cache
def _why_not_built() -> str:
    try:
        facts = json.loads((_PACKAGE / "_build_info.json").read_text())
    except (OSError, ValueError):
        return "it was not built by rdmatensor's own build"
    return str(facts.get("no_tensorflow_because") or "it was removed after the build")
