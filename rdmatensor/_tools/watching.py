# SPDX-License-Identifier: Apache-2.0
"""Read the metrics of running tasks for `rdmatensor top`, twice to compute rates."""

from __future__ import annotations

import http.client
import re
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

PREFIX = "rdmatensor_"
_CONNECT_S = 2.0
_ANSWER_S = 4.0
_LONGEST = 16 << 20
_HINT = (
    "does the task call rdmatensor.metrics.serve(), with RDMATENSOR_METRICS set? Other machines "
    "can reach it only if that has an address, as 0.0.0.0:9100 has"
)


class NotReadable(Exception):
    """An address does not answer with metrics. The text has the reason and a remedy."""


@dataclass(frozen=True)
class Reading:
    """The metrics of a task at one time, by name without "rdmatensor_", with labels and values."""

    at: float
    """Seconds of a monotonic clock."""
    metrics: Mapping[str, Sequence[tuple[Mapping[str, str], float]]]

    def labels(self, name: str) -> list[Mapping[str, str]]:
        """Return the labels of all metrics with this name."""
        return [labels for labels, _ in self.metrics.get(name, ())]

    def value(self, name: str, **labels: str) -> float:
        """Return the sum of the metrics with these labels; 0 if there are none."""
        wanted = labels.items()
        return sum(value for has, value in self.metrics.get(name, ()) if wanted <= has.items())

    def by(self, name: str, label: str) -> dict[str, float]:
        """Return the sums for each value of a label."""
        sums: dict[str, float] = {}
        for labels, value in self.metrics.get(name, ()):
            sums[labels.get(label, "")] = sums.get(labels.get(label, ""), 0.0) + value
        return sums


def parse(text: str, at: float) -> Reading:
    """Read the text format of Prometheus. Raises NotReadable if the text is something else."""
    metrics: dict[str, list[tuple[Mapping[str, str], float]]] = {}
    try:
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                if sample.name.startswith(PREFIX):
                    labels = {name: printable(value) for name, value in sample.labels.items()}
                    metrics.setdefault(sample.name.removeprefix(PREFIX), []).append(
                        (labels, sample.value)
                    )
    except Exception as error:  # the parser raises exceptions of many kinds
        raise NotReadable(f"another program answers there: {error}") from error
    if not metrics:
        raise NotReadable(f"the answer has no metrics of rdmatensor: {_HINT}")
    return Reading(at, metrics)


def printable(text: str) -> str:
    """Return the text without control characters for terminals."""
    return "".join(letter if letter.isprintable() else "?" for letter in text)


def read(address: str) -> Reading:
    """Return the metrics at "host:port". Raises NotReadable if they cannot be read."""
    return parse(fetch(address), time.monotonic())


def fetch(address: str) -> str:
    """Return the answer of "host:port", without a proxy. Raises NotReadable as `read` does."""
    host, _, port = address.rpartition(":")
    connection = http.client.HTTPConnection(host.strip("[]"), int(port), timeout=_CONNECT_S)
    try:
        connection.request("GET", "/metrics")
        answer = connection.getresponse()
        text = answer.read(_LONGEST + 1)
    except OSError as error:
        raise NotReadable(f"{error.strerror or error}: {_HINT}") from error
    except http.client.HTTPException as error:
        raise NotReadable(f"another program answers there: {error!r}") from error
    finally:
        connection.close()
    if answer.status != http.client.OK:
        raise NotReadable(f"another program answers there: HTTP status {answer.status}")
    if len(text) > _LONGEST:
        raise NotReadable(f"another program answers there: more than {_LONGEST >> 20} MiB")
    return text.decode(errors="replace")


def read_all(addresses: Sequence[str]) -> dict[str, Reading | NotReadable]:
    """Read all addresses at the same time, within a few seconds."""
    found: dict[str, Reading | NotReadable] = {}

    def one(address: str) -> None:
        try:
            found[address] = read(address)
        except NotReadable as error:
            found[address] = error

    threads = [threading.Thread(target=one, args=(each,), daemon=True) for each in addresses]
    for thread in threads:
        thread.start()
    end = time.monotonic() + _ANSWER_S
    for thread in threads:
        thread.join(max(0.0, end - time.monotonic()))
    late = NotReadable(
        f"no complete answer in {_ANSWER_S:.0f} s: is the task stopped, or very busy?"
    )
    return {address: found.get(address, late) for address in addresses}


@dataclass
class View:
    """What `top` shows of a task. Rates cover the last `seconds`."""

    address: str
    error: str = ""
    tasks: list[str] = field(default_factory=list)
    seconds: float = 0.0
    plugin: bool = False
    paths: dict[str, dict[str, float]] = field(default_factory=dict)
    peers: list[dict[str, Any]] = field(default_factory=list)
    control: list[dict[str, Any]] = field(default_factory=list)
    slow_edges: list[dict[str, Any]] = field(default_factory=list)
    memory: dict[str, float] = field(default_factory=dict)
    credits: dict[str, float] = field(default_factory=dict)
    faults: dict[str, float] = field(default_factory=dict)
    fallbacks: dict[str, float] = field(default_factory=dict)
    training: dict[str, Any] = field(default_factory=dict)
    groups: list[dict[str, Any]] = field(default_factory=list)


def view(address: str, before: Reading, now: Reading) -> View:
    """Return the view of a task. All rates are 0 if `before` and `now` are the same."""
    seconds = now.at - before.at

    def rate(name: str, **labels: str) -> float:
        # The counters of a restarted task begin at 0.
        more = now.value(name, **labels) - before.value(name, **labels)
        return max(0.0, more) / seconds if seconds > 0 else 0.0

    shown = View(address, seconds=seconds, plugin=now.value("plugin_loaded") == 1)
    shown.tasks = [labels["task"] for labels in now.labels("server_info")]
    for path in now.by("sent_bytes_total", "path"):
        counts = {}
        for name in ("sent_bytes", "sent_tensors", "received_bytes", "received_tensors"):
            counts[name] = now.value(f"{name}_total", path=path)
            counts[f"{name}_per_s"] = rate(f"{name}_total", path=path)
        shown.paths[path] = counts
    for labels in now.labels("peer_info"):
        who = {"peer": labels["peer"], "direction": labels["direction"]}
        waits, wait_s = "peer_waits_total", "peer_wait_seconds_total"
        receives = labels["direction"] == "receive"
        shown.peers.append(
            {
                **labels,
                "bytes": now.value("peer_bytes_total", **who),
                "rpc_bytes": now.value("peer_rpc_bytes_total", **who),
                "bytes_per_s": rate("peer_bytes_total", **who),
                "tensors_per_s": rate("peer_tensors_total", **who),
                "waits_per_s": rate(waits, peer=labels["peer"]) if receives else 0.0,
                "waiting": rate(wait_s, peer=labels["peer"]) if receives else 0.0,
            }
        )
    for labels in now.labels("control_info"):
        calls = rate("control_calls_total", peer=labels["peer"])
        shown.control.append({**labels, "calls_per_s": calls})
    for edge in now.labels("edge_waits_total"):
        total_s = now.value("edge_wait_seconds_total", **edge)
        shown.slow_edges.append(
            {
                **edge,
                "waits": now.value("edge_waits_total", **edge),
                "wait_seconds": total_s,
                "longest_seconds": now.value("edge_longest_wait_seconds", **edge),
                "waiting": rate("edge_wait_seconds_total", **edge),
            }
        )
    shown.slow_edges.sort(key=lambda edge: -float(edge["wait_seconds"]))
    names = ("limit", "reserved", "used", "peak")
    shown.memory = {f"arena_{name}_bytes": now.value(f"arena_{name}_bytes") for name in names}
    shown.memory["place_bytes"] = now.value("plan_place_bytes")
    shown.credits = {
        "busy": now.value("plan_events_total", event="busy"),
        "busy_per_s": rate("plan_events_total", event="busy"),
        "queued": now.value("device_queued_total"),
        "queued_per_s": rate("device_queued_total"),
        "pending": now.value("device_pending"),
    }
    shown.training = _training(now, rate)
    for labels in now.labels("group_info"):
        who = {"group": labels["group"], "rank": labels["rank"]}
        shown.groups.append(
            {
                **labels,
                "operations": now.value("group_operations_total", **who),
                "operations_per_s": rate("group_operations_total", **who),
                "bytes": now.value("group_bytes_total", **who),
                "bytes_per_s": rate("group_bytes_total", **who),
                "copied_bytes_per_s": rate("group_copied_bytes_total", **who),
            }
        )
    shown.groups.sort(key=lambda each: (-float(each["bytes"]), each["group"], int(each["rank"])))
    shown.faults = _faults(now)
    shown.fallbacks = {
        **now.by("rpc_sent_tensors_total", "reason"),
        **{
            f"collectives: {reason}": count
            for reason, count in now.by("collectives_by_tensorflow_total", "reason").items()
        },
    }
    return shown


def _training(now: Reading, rate: Callable[..., float]) -> dict[str, Any]:
    """Return what rdmatensor.train does there; empty without it."""
    if not now.labels("train_info"):
        return {}
    operations = [
        {
            "operation": name,
            "per_s": rate("train_operations_total", operation=name),
            "bytes_per_s": rate("train_bytes_total", operation=name),
            "busy": rate("train_seconds_total", operation=name),
            "waiting": rate("train_waited_seconds_total", operation=name),
            "seconds": now.value("train_seconds_total", operation=name),
        }
        for name in now.by("train_operations_total", "operation")
    ]
    late = {
        rank: rate("train_late_seconds_total", rank=rank)
        for rank in now.by("train_late_seconds_total", "rank")
    }
    return {
        **now.labels("train_info")[0],
        "sent_bytes_per_s": rate("train_sent_bytes_total"),
        "busy": rate("train_busy_seconds_total"),
        "exposed": rate("train_exposed_seconds_total"),
        "waiting": sum(late.values()),
        "late": late,
        "operations": sorted(operations, key=lambda each: -each["seconds"]),
    }


def _faults(now: Reading) -> dict[str, float]:
    """Return the counters of faults since the task began."""
    plan = now.by("plan_events_total", "event")
    return {
        "channels_lost": now.value("device_channels_lost_total"),
        "tensors_corrupted": now.value("checksums_total", result="corrupted"),
        "collectives_failed": now.value("collectives_failed_total"),
        "operations_failed": now.value("train_failed_total"),
        "edges_mismatched": plan.get("mismatched", 0.0),
        "edges_over_budget": plan.get("over_budget", 0.0),
        "arena_exhausted": now.value("arena_exhausted_allocations_total"),
    }


_ADDRESS = re.compile(r"(?:(?P<host>\[[^]]+\]|[^:\[\]]*):)?(?P<first>\d+)(?:-(?P<last>\d+))?")


def addresses(words: Iterable[str]) -> list[str]:
    """Return "HOST:PORT" for each "HOST:PORT", "PORT" or "HOST:FIRST-LAST". Raises ValueError for other
    text.
    """
    found = []
    for word in words:
        match = _ADDRESS.fullmatch(word)
        first = int(match["first"]) if match else 0
        last = int(match["last"] or first) if match else 0
        if match is None or not 0 < first <= last <= 65535 or last - first > 1023:
            raise ValueError(f"{word!r} is not HOST:PORT, PORT or HOST:FIRST-LAST")
        host = match["host"] or "127.0.0.1"
        found += [f"{host}:{port}" for port in range(first, last + 1)]
    return found
