# SPDX-License-Identifier: Apache-2.0
"""Adds up by which paths the tasks sent their tensors, from each task's `rdmatensor.tensorflow.stats()`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

STOCK = "grpc"
PATHS = ("static", "bounded", "inline", "dynamic", "bounce", "rpc")

# These are not plain bytes: only TensorFlow's RecvTensor can send them.
_UNAVOIDABLE = ("string", "variant", "resource")


@dataclass
class Paths:
    """What one or several tasks sent: tensors and bytes by path, and why tensors went by rpc.

    `reasons` counts tensors by reason; `peers` are lines about the peers that are served by gRPC only;
    `transports` counts the bytes that left over each transport.
    """

    tensors: Counter[str] = field(default_factory=Counter)
    bytes: Counter[str] = field(default_factory=Counter)
    reasons: Counter[str] = field(default_factory=Counter)
    peers: list[str] = field(default_factory=list)
    transports: Counter[str] = field(default_factory=Counter)

    @classmethod
    def of_this_process(cls) -> Paths:
        """Reads what the plugin has counted in this process."""
        from rdmatensor.tensorflow import stats

        return cls.from_stats(stats())

    @classmethod
    def from_stats(cls, stats: Mapping[str, Any]) -> Paths:
        """Takes the dictionary of `rdmatensor.tensorflow.stats()`."""
        counts = stats["paths"]
        return cls(
            Counter({path: counts[path]["sent_tensors"] for path in PATHS}),
            Counter({path: counts[path]["sent_bytes"] for path in PATHS}),
            Counter(stats["rpc_reasons"]),
            [
                f"{peer['direction']} {peer['task']}: {peer['why']}"
                for peer in stats["peers"]
                if peer["state"] in ("rpc", "refused")
            ],
            Counter({name: each["sent_bytes"] for name, each in stats["transports"].items()}),
        )

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> Paths:
        """The inverse of `as_json`."""
        return cls(
            Counter(fields["tensors"]),
            Counter(fields["bytes"]),
            Counter(fields["reasons"]),
            list(fields["peers"]),
            Counter(fields["transports"]),
        )

    @classmethod
    def total(cls, parts: Iterable[Paths]) -> Paths:
        """Adds up the counts of tasks."""
        total = cls()
        for part in parts:
            total.tensors.update(part.tensors)
            total.bytes.update(part.bytes)
            total.reasons.update(part.reasons)
            total.peers += part.peers
            total.transports.update(part.transports)
        return total

    def as_json(self) -> dict[str, Any]:
        """Returns the fields by name."""
        return {
            "tensors": dict(self.tensors),
            "bytes": dict(self.bytes),
            "reasons": dict(self.reasons),
            "peers": self.peers,
            "transports": dict(self.transports),
        }

    def pushed_bytes(self) -> int:
        """The bytes that went by any path but rpc."""
        return sum(self.bytes[path] for path in PATHS if path != "rpc")

    def avoidable(self) -> list[str]:
        """Describes what went by rpc although its kind can be pushed. Empty if nothing did."""
        found = [
            f"{count} tensors that can be pushed went by rpc: {reason}"
            for reason, count in self.reasons.items()
            if reason not in _UNAVOIDABLE
        ]
        # A receiver that fetches from the start gives no reason, because nothing was offered to it.
        unexplained = self.tensors["rpc"] - sum(self.reasons.values())
        if unexplained > 0:
            found.append(f"{unexplained} tensors were fetched by rpc before they could be pushed")
        return found + [f"gRPC only: {peer}" for peer in self.peers]


def require_plugin(protocol: str) -> None:
    """Raises RuntimeError with the reason if `protocol` needs the plugin and this process lacks it.

    Call it after importing TensorFlow, whose own message would be that no server factory is registered.
    """
    if protocol == STOCK:
        return
    from rdmatensor.tensorflow import loaded, why_not

    if not loaded():
        raise RuntimeError(f"{protocol} is not available: {why_not()}")


def task_paths(protocol: str) -> Paths:
    """Returns the counts of this process. They are zeros for stock gRPC, which counts nothing."""
    return Paths() if protocol == STOCK else Paths.of_this_process()
