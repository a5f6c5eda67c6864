# SPDX-License-Identifier: Apache-2.0
"""The types of what `rdmatensor.tensorflow.stats` returns."""

from __future__ import annotations

from typing import Any, Literal, TypedDict


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
    operations: int
    """Operations run that send or receive several tensors."""
    in_operations: int
    """Tensors that they sent or received."""
    groups: int
    """Groups of tensors that were sent."""
    mismatched: int
    """Edges about which the two ends disagree. A warning names the first."""
    over_budget: int
    """Edges without a place because of RDMATENSOR_PLAN_LIMIT."""
    promoted: int
    """Edges that got a place because of the sizes seen."""
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
    allocations: int
    """Requests that it served."""
    exhausted_allocations: int
    """Requests that did not fit and got ordinary memory instead."""
    exhausted_bytes: int


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


class RowUse(TypedDict):
    """Operations that read, update or add up rows of tables, of the kinds that the plugin has kernels for."""

    operations: int
    """Those that the plugin's kernels did (RDMATENSOR_ROW_KERNELS)."""
    rows: int
    """The rows that they read, updated or added up."""
    left: int
    """Those that these kernels left to TensorFlow's: the first one on a variable, rare forms, and errors."""


class Peer(TypedDict):
    """How tensors from ("receive") or to ("send") another task travel at present, and why."""

    task: str
    direction: Literal["receive", "send"]
    state: Literal["connecting", "ready", "rpc", "refused", "lost"]
    """"rpc": everything goes by RPC. "refused": everything would go by RPC, which RDMATENSOR_POLICY forbids.
    "lost": the task is gone; the next tensor from it finds its successor."""
    transport: str
    """"shm", "verbs" or "tcp"; "grpc" if everything goes by RPC; "none" if nothing can travel."""
    encrypted: bool
    """Whether nobody on the way can read what travels so (RDMATENSOR_ENCRYPT). False for "shm", whose bytes
    leave no machine, and for "grpc"."""
    why: str
    tensors: int
    """Tensors from or to the task, by any path, since the process began or since `reset_stats`."""
    bytes: int
    rpc_bytes: int
    """The bytes that went by RPC."""
    retry_in_ms: int | None
    """For "rpc" and "receive": the first tensor after this time starts another attempt to leave RPC, in the
    background. None: there is no attempt until the task restarts."""
    failbacks: int
    """For "receive": how many of these attempts succeeded."""
    moves: int
    """For "receive": how often tensors moved to a better transport while steps went on."""
    waits: int
    """For "receive": tensors that arrived after a consumer had asked for them."""
    wait_us: int
    """The sum of these waits. Simultaneous waits count separately."""
    control: Literal["channel", "grpc"] | None
    """How this process starts and ends steps at the task. None: it does not."""


class ControlUse(TypedDict):
    """How this process starts and ends the steps of one task (RDMATENSOR_CONTROL)."""

    way: Literal["channel", "grpc"]
    why: str
    """The transport of the channel, or why there is none."""
    channel_calls: int
    """Calls since the process began or since `reset_stats`."""
    grpc_calls: int


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
    atomics: int
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
    plan: PlanUse
    transports: dict[str, PathCounters]
    """Tensors and bytes by each transport other than RPC: {"shm": ...}."""
    arena: ArenaUse
    collectives: CollectiveUse
    checksums: ChecksumUse
    rows: RowUse
    rpc_reasons: dict[str, int]
    """Why sent tensors went by rpc: "string", "variant", "resource", "device memory", "arena full",
    "memory not registered", ..."""
    failbacks: int
    """The sum of `Peer.failbacks`."""
    moves: int
    """The sum of `Peer.moves`."""
    control: dict[str, ControlUse]
    """By task, for the tasks at which this process starts and ends steps, as the master of a session does."""
    peers: list[Peer]
    slow_edges: list[SlowEdge]
    """The 20 edges with the longest waits, the longest first."""
    devices: list[DeviceUse]
    """One for each server of this process."""
    servers: list[str]
    """The tasks of the grpc+rdma servers of this process."""
