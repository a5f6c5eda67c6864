# SPDX-License-Identifier: Apache-2.0
"""The counters of this process as Prometheus metrics, which docs/metrics.md lists."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from .._api import plugin, training
from .._api.library import __version__
from ..device import DeviceStats, _open_devices
from ..errors import RdmaError
from ..group import GroupInfo

# The values of the labels, and the number.
_Row = tuple[Sequence[str], float]
_MICROSECOND = 1e-6


def families() -> Iterator[Metric]:
    """Yield the metrics that `rdmatensor.metrics` serves. Without the plugin, only Python's devices count."""
    loaded = plugin.loaded()
    stats: Mapping[str, Any] = plugin.stats() if loaded else {"servers": [], "devices": []}
    yield _gauge("info", "Version of rdmatensor.", ["version"], [([__version__], 1)])
    yield _gauge(
        "plugin_loaded", "1 if TensorFlow's plugin is in this process.", [], [([], loaded)]
    )
    servers = [([task], 1.0) for task in sorted(set(stats["servers"]))]
    yield _gauge("server_info", "Servers with grpc+rdma of this process.", ["task"], servers)
    yield from _devices(stats["devices"])
    yield from _groups()
    yield from _training(training.stats())
    if not loaded:
        return
    yield from _paths(stats)
    yield from _plan(stats["plan"])
    yield from _arena(stats["arena"])
    yield from _peers(stats["peers"])
    yield from _control(stats["control"])
    yield from _edges(stats["slow_edges"])
    yield from _fallbacks(stats)
    yield from _collectives(stats["collectives"])
    yield from _rows(stats["rows"])


def _family(kind: Any, name: str, text: str, labels: Sequence[str], rows: Iterable[_Row]) -> Metric:
    family: Metric = kind(f"rdmatensor_{name}", text, labels=labels)
    for values, number in rows:
        family.add_metric(values, number)  # type: ignore[attr-defined]
    return family


_counter = partial(_family, CounterMetricFamily)
_gauge = partial(_family, GaugeMetricFamily)


def _of_keys(rows: Mapping[str, Mapping[str, float]], name: str) -> list[_Row]:
    """Return the number `name` of each entry, labelled with its key."""
    return [([key], entry[name]) for key, entry in rows.items()]


_BOTH_WAYS = {
    "sent_tensors": "Tensors sent",
    "sent_bytes": "Bytes of tensors sent",
    "received_tensors": "Tensors received",
    "received_bytes": "Bytes of tensors received",
}


def _paths(stats: Mapping[str, Any]) -> Iterator[Metric]:
    for name, text in _BOTH_WAYS.items():
        yield _counter(name, f"{text}, by path.", ["path"], _of_keys(stats["paths"], name))
        yield _counter(f"transport_{name}", f"{text}, by transport; not those by gRPC.",
                       ["transport"], _of_keys(stats["transports"], name))  # fmt: skip
    for name in ("tensors", "bytes"):
        yield _counter(f"fetched_{name}", f"{name.title()} used in the sender's memory, or read from it.",
                       ["way"], _of_keys(stats["fetched"], name))  # fmt: skip
    checks = [([result], number) for result, number in stats["checksums"].items()]
    yield _counter("checksums", "Tensors by what became of their checksum.", ["result"], checks)


def _rows(rows: Mapping[str, float]) -> Iterator[Metric]:
    yield _counter("row_operations", "Operations on rows of tables, by whose kernel did them.", ["kernel"],
                   [(["rdmatensor"], rows["operations"]), (["tensorflow"], rows["left"])])  # fmt: skip
    yield _counter("row_operations_rows", "Rows that the kernels of rdmatensor read, updated or added up.",
                   [], [([], rows["rows"])])  # fmt: skip


def _plan(plan: Mapping[str, float]) -> Iterator[Metric]:
    yield _gauge("plan_place_bytes", "Memory held for planned tensors of peers.", [],
                 [([], plan["place_bytes"])])  # fmt: skip
    events = [([event], number) for event, number in plan.items() if event != "place_bytes"]
    yield _counter("plan_events", "What happened to planned tensors and edges.", ["event"], events)


def _arena(arena: Mapping[str, float]) -> Iterator[Metric]:
    texts = {
        "limit_bytes": "Bytes that the arena may grow to.",
        "reserved_bytes": "Bytes of the arena that devices have registered.",
        "used_bytes": "Bytes of the arena in use.",
        "peak_bytes": "The most bytes of the arena that were in use.",
        "regions": "Pieces that the arena consists of.",
    }
    for name, text in texts.items():
        yield _gauge(f"arena_{name}", text, [], [([], arena[name])])
    for name in ("allocations", "bytes"):
        yield _counter(f"arena_exhausted_{name}", f"{name.title()} that did not fit into the arena.",
                       [], [([], arena[f"exhausted_{name}"])])  # fmt: skip


def _peers(peers: Sequence[Mapping[str, Any]]) -> Iterator[Metric]:
    labels = ["peer", "direction"]
    states = [
        ([*(str(peer[name]) for name in ("task", "direction", "state", "transport", "why"))], 1.0)
        for peer in peers
    ]
    yield _gauge("peer_info", "How tensors from or to a task travel at present, and why so.",
                 [*labels, "state", "transport", "why"], states)  # fmt: skip
    texts = {
        "tensors": "Tensors from or to a task.",
        "bytes": "Bytes of tensors from or to a task.",
        "rpc_bytes": "Those of them that went by gRPC.",
    }
    for name, text in texts.items():
        rows = [([peer["task"], peer["direction"]], peer[name]) for peer in peers]
        yield _counter(f"peer_{name}", text, labels, rows)
    sources = [peer for peer in peers if peer["direction"] == "receive"]
    yield _counter("peer_failbacks", "Times that a task was reached by a transport again.", ["peer"],
                   [([peer["task"]], peer["failbacks"]) for peer in sources])  # fmt: skip
    yield _counter("peer_moves", "Times that a task's tensors moved to a better transport.", ["peer"],
                   [([peer["task"]], peer["moves"]) for peer in sources])  # fmt: skip
    yield _counter("peer_waits", "Tensors of a task that were asked for before they were there.",
                   ["peer"], [([peer["task"]], peer["waits"]) for peer in sources])  # fmt: skip
    yield _counter("peer_wait_seconds", "Time that they were waited for, added up.", ["peer"],
                   [([peer["task"]], peer["wait_us"] * _MICROSECOND) for peer in sources])  # fmt: skip


def _control(control: Mapping[str, Mapping[str, Any]]) -> Iterator[Metric]:
    yield _gauge("control_info", "How this process starts and ends steps at a task, and why so.",
                 ["peer", "way", "why"],
                 [([task, use["way"], use["why"]], 1.0) for task, use in control.items()])  # fmt: skip
    ways = ("channel", "grpc")
    rows = [([task, way], use[f"{way}_calls"]) for task, use in control.items() for way in ways]
    yield _counter("control_calls", "Calls that start and end steps.", ["peer", "way"], rows)


def _edges(edges: Sequence[Mapping[str, Any]]) -> Iterator[Metric]:
    labels = ["edge", "peer", "task"]

    def rows(name: str, scale: float = 1) -> list[_Row]:
        return [
            ([edge["edge"], edge["source"], edge["destination"]], edge[name] * scale)
            for edge in edges
        ]

    yield _counter("edge_waits", "Waits for an edge's tensors; of the 20 that were waited for longest.",
                   labels, rows("waits"))  # fmt: skip
    yield _counter("edge_wait_seconds", "Time that these took, added up.", labels,
                   rows("wait_us", _MICROSECOND))  # fmt: skip
    yield _gauge("edge_longest_wait_seconds", "The longest of them.", labels,
                 rows("longest_us", _MICROSECOND))  # fmt: skip


def _fallbacks(stats: Mapping[str, Any]) -> Iterator[Metric]:
    reasons = [([reason], number) for reason, number in stats["rpc_reasons"].items()]
    yield _counter("rpc_sent_tensors", "Tensors sent by gRPC, by reason.", ["reason"], reasons)


def _collectives(collectives: Mapping[str, Any]) -> Iterator[Metric]:
    for name in ("operations", "bytes"):
        yield _counter(f"collective_{name}", f"{name.title()} of collective operations on groups of devices.",
                       ["kind"], _of_keys(collectives["operations"], name))  # fmt: skip
    yield _counter("collectives_failed", "Collective operations that failed.", [],
                   [([], collectives["failed"])])  # fmt: skip
    reasons = [([reason], number) for reason, number in collectives["by_tensorflow"].items()]
    yield _counter("collectives_by_tensorflow", "Those left to TensorFlow's algorithms, by reason.",
                   ["reason"], reasons)  # fmt: skip


def _training(stats: training.TrainStats | None) -> Iterator[Metric]:
    if stats is None:
        return
    yield _gauge("train_info", "The place of this process among those that train together.",
                 ["rank", "size"], [([str(stats["rank"]), str(stats["size"])], 1.0)])  # fmt: skip
    texts = {
        "operations": "Operations of rdmatensor.train that ended well.",
        "failed": "Those that failed.",
        "bytes": "Bytes of their operands in this process.",
        "seconds": "Time from their start here to their end, added up.",
        "waited_seconds": "The part until all processes had begun.",
    }
    for name, text in texts.items():
        rows = [([each], float(costs[name])) for each, costs in stats["operations"].items()]  # type: ignore[literal-required]
        yield _counter(f"train_{name}", text, ["operation"], rows)
    late = [([str(rank)], each["waited_seconds"]) for rank, each in enumerate(stats["late"])]
    yield _counter(
        "train_late_seconds", "The same by the process that was waited for.", ["rank"], late
    )
    for total, text in {
        "busy_seconds": "Time in which any operation was under way.",
        "exposed_seconds": "The part after the last operation had started.",
        "sent_bytes": "Bytes that this process sent.",
        "copied_bytes": "Bytes that the group had to copy because they lay in no region.",
    }.items():
        yield _counter(f"train_{total}", text, [], [([], float(stats[total]))])  # type: ignore[literal-required]


_DEVICE_COUNTERS = {
    "writes": "One-sided writes posted.",
    "write_bytes": "Their bytes.",
    "reads": "One-sided reads posted.",
    "read_bytes": "Their bytes.",
    "atomics": "Atomic operations posted.",
    "notifies_sent": "Notifications sent.",
    "notifies_received": "Notifications received.",
    "notify_bytes_sent": "Bytes of notifications sent.",
    "notify_bytes_received": "Bytes of notifications received.",
    "queued": "Batches of operations that had to wait for a credit.",
    "doorbells": "Sleeping peers woken (shm), batches handed to the device (verbs), calls that send (tcp).",
    "wakeups": "Times that the device's thread woke up.",
    "channels_opened": "Connections opened.",
    "channels_lost": "Connections lost.",
}
_DEVICE_GAUGES = {
    "regions": "Regions registered.",
    "region_bytes": "Their bytes.",
    "pending": "Requests to all peers that are not complete.",
}


def _devices(of_servers: Sequence[Mapping[str, Any]]) -> Iterator[Metric]:
    """Yield the metrics of devices, of TensorFlow servers and of Python."""
    devices = [([each["task"], each["address"]], each) for each in of_servers]
    for device in list(_open_devices):
        # Another thread may close it at the same time.
        with contextlib.suppress(RdmaError):
            counts: DeviceStats = device.stats()
            devices.append(([device.name, device.address], counts._asdict()))
    labels = ["device", "address"]
    for name, text in _DEVICE_COUNTERS.items():
        yield _counter(f"device_{name}", text, labels, [(who, each[name]) for who, each in devices])
    for name, text in _DEVICE_GAUGES.items():
        yield _gauge(f"device_{name}", text, labels, [(who, each[name]) for who, each in devices])


def _groups() -> Iterator[Metric]:
    """Yield the metrics of Python's open groups, such as the process groups of torch."""
    groups: list[GroupInfo] = []
    for device in list(_open_devices):
        for group in list(device._groups):
            # Another thread may close it at the same time.
            with contextlib.suppress(RdmaError):
                groups.append(group.info)
    yield _gauge("group_info", "Groups of this process, and its place in them.", ["group", "rank", "size"],
                 [([each.name, str(each.rank), str(each.size)], 1.0) for each in groups])  # fmt: skip
    texts = {
        "operations": "Operations of the group that ended well, by algorithm.",
        "bytes": "Bytes that this process sent in them.",
    }
    for name, text in texts.items():
        rows = [
            ([each.name, str(each.rank), algorithm or "one"], float(number))
            for each in groups
            for algorithm, number in getattr(each, name).items()
            if number
        ]
        yield _counter(f"group_{name}", text, ["group", "rank", "algorithm"], rows)
    copies = [([each.name, str(each.rank)], float(each.copies)) for each in groups]
    yield _counter(
        "group_copied_bytes", "Bytes that it had to copy for them.", ["group", "rank"], copies
    )
