# SPDX-License-Identifier: Apache-2.0
"""How long the communication of a step takes at least, for a given network.

    T = max over tasks of max(sent, received) / bandwidth  +  sum over rounds of their latency

Every task has one full-duplex port, and all of them work at once; so the fullest port bounds the step.
A *round* is a set of tensors that can travel together: a tensor is in round r when r transfers lie between it
and the beginning of the step. A round takes one latency when all in it is pushed (static, bounded), three
when something is fetched (dynamic: a descriptor, then a read there and back), and two plus `rpc_seconds` when
something goes by RPC. Computation, which hides part of it, and sizes that are not known count as nothing.
Tensors inside loops count `iterations` times; as rounds they count once.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..model.errors import AnalysisError
from ..model.plan import Edge, TransferPlan


@dataclass(frozen=True)
class Network:
    """Each task's port: bytes per second each way; seconds from one task to another."""

    bandwidth: float = 12.5e9
    latency: float = 2e-6
    rpc_seconds: float = 200e-6
    """What TensorFlow's RPC costs beyond the network."""

    def __post_init__(self) -> None:
        if self.bandwidth <= 0 or self.latency < 0 or self.rpc_seconds < 0:
            raise AnalysisError("a network needs a bandwidth above 0, and times of at least 0")


@dataclass(frozen=True)
class Prediction:
    """Seconds of a step's communication, and what they are made of."""

    seconds: float
    busiest: str
    """The task whose port bounds the step; "" when nothing travels."""
    transfer_seconds: float
    latency_seconds: float
    rounds: int
    link_seconds: dict[tuple[str, str], float]
    """What each link would take alone, without latency."""


def predict(plan: TransferPlan, network: Network | None = None, iterations: int = 1) -> Prediction:
    """Applies the formula above."""
    network = network or Network()
    sent, received = dict.fromkeys(plan.tasks, 0), dict.fromkeys(plan.tasks, 0)
    links: dict[tuple[str, str], float] = {}
    rounds: dict[int, float] = {}
    for edge in plan.edges:
        count = edge.bytes * (iterations if edge.in_loop else 1)
        sent[edge.source] += count
        received[edge.destination] += count
        pair = edge.source, edge.destination
        links[pair] = links.get(pair, 0.0) + count / network.bandwidth
        rounds[edge.first] = max(rounds.get(edge.first, 0.0), _latency(edge, network))
    load = {task: max(sent[task], received[task]) for task in plan.tasks}
    busiest = max(plan.tasks, key=lambda task: load[task]) if plan.edges else ""
    transfer = load[busiest] / network.bandwidth if busiest else 0.0
    waiting = sum(rounds[number] for number in sorted(rounds))
    return Prediction(transfer + waiting, busiest, transfer, waiting, len(rounds), links)


def _latency(edge: Edge, network: Network) -> float:
    if edge.plan_class == "dynamic":
        return 3 * network.latency
    if edge.plan_class == "rpc":
        return 2 * network.latency + network.rpc_seconds
    return network.latency
