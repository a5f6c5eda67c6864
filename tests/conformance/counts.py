# SPDX-License-Identifier: Apache-2.0
"""What the plugin did in all processes of a run, and whether that shows that tensors took its paths."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

# Tensors that always go by TensorFlow's own RPC.
ALWAYS_RPC = ("string", "variant", "resource", "device memory")


def of(folders: Iterable[Path]) -> dict[str, int]:
    """The sums of what conformance_hook.counters wrote there: tensors and bytes by path, by transport, ..."""
    sums: Counter[str] = Counter()
    for path in (path for folder in folders for path in (folder / "stats").glob("*.json")):
        stats = json.loads(path.read_text())
        sums["processes"] += 1
        sums["servers"] += len(stats["servers"])
        for name, counters in stats["paths"].items():
            sums[f"{name} tensors"] += counters["sent_tensors"]
            sums[f"{name} bytes"] += counters["sent_bytes"]
        for name, counters in stats["transports"].items():
            sums[f"received over {name}"] += counters["received_tensors"]
        for counters in stats["collectives"]["operations"].values():
            sums["collectives"] += counters["operations"]
            sums["collectives bytes"] += counters["bytes"]
        for reason, count in stats["rpc_reasons"].items():
            sums[f"by rpc: {reason}"] += count
        for reason, count in stats["collectives"]["by_tensorflow"].items():
            sums[f"collectives by TensorFlow: {reason}"] += count
    return {name: count for name, count in sums.items() if count}


def sent(counts: dict[str, int]) -> dict[str, int]:
    """Tensors that did not go by RPC, by path."""
    ending = " tensors"
    paths = {name[: -len(ending)]: count for name, count in counts.items() if name.endswith(ending)}
    paths.pop("rpc", None)
    return paths


def doubt(counts: dict[str, int], path: str, expected: bool) -> str:
    """Why the results say nothing about grpc+rdma, "" if they do.

    `expected` says that tensors are known to move between tasks, `path` is the one they were forced to take.
    No path is forced upon collective operations.
    """
    paths = sent(counts)
    if path and paths:
        return "" if paths.get(path) else f"no tensor went by the path {path}, which was forced"
    if paths or counts.get("collectives"):
        return ""
    if expected:
        return "no tensor went by grpc+rdma"
    left = counts.get("rpc tensors", 0) - sum(counts.get(f"by rpc: {why}", 0) for why in ALWAYS_RPC)
    return f"all {left} tensors that could have gone by grpc+rdma went by RPC" if left > 0 else ""
