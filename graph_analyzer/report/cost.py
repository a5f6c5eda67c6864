# SPDX-License-Identifier: Apache-2.0
"""Predict the least time that the communication of a step takes on a given network.

    T = max over tasks of max(sent, received) / bandwidth  +  sum over rounds of their latency

Every task has one full-duplex port, and all ports work at once, so the busiest port bounds the step.
A *round* is a set of tensors that can travel together: a tensor is in round r if r transfers lie between it
and the beginning of the step. A round takes one latency if everything in it is pushed (static, bounded),
three if something is fetched (dynamic: a descriptor, then a read there and back), and two plus `rpc_seconds`
if something goes by RPC. Computation, which hides part of this time, and unknown sizes count as nothing.
Tensors inside loops count as often as they are sent, or `iterations` times if that is not known, as bytes
and once as rounds.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..model.errors import AnalysisError
from ..model.plan import Edge, TransferPlan


@dataclass(frozen=True)
class Network:
    """Each task's port in bytes per second each way, and the seconds from one task to another."""

    bandwidth: float = 12.5e9
    latency: float = 2e-6
    rpc_seconds: float = 200e-6
    """What TensorFlow's RPC costs in addition to the network."""

    def __post_init__(self) -> None:
        if self.bandwidth <= 0 or self.latency < 0 or self.rpc_seconds < 0:
            raise AnalysisError(
                "a network's bandwidth must be above 0, and its times must be at least 0"
            )


# What to expect of a transport before anybody measured (`rdmatensor ping` does).
TYPICAL = {"verbs": Network(), "tcp": Network(bandwidth=1.25e9, latency=30e-6)}


@dataclass(frozen=True)
class Prediction:
    """The seconds of a step's communication, and their parts."""

    seconds: float
    busiest: str
    """The task whose port bounds the step; "" if nothing travels."""
    transfer_seconds: float
    latency_seconds: float
    rounds: int
    link_seconds: dict[tuple[str, str], float]
    """What each link would take alone, without latency."""


def predict(plan: TransferPlan, network: Network | None = None, iterations: int = 1) -> Prediction:
    """Predict the least time that the communication of a step takes, by the formula of
    docs/graph_analyzer.md.

    `network` is Network() if None. A loop of which it is not known how often it runs runs `iterations`
    times.
    """
    network = network or Network()
    sent, received = dict.fromkeys(plan.tasks, 0), dict.fromkeys(plan.tasks, 0)
    links: dict[tuple[str, str], float] = {}
    rounds: dict[int, float] = {}
    for edge in plan.edges:
        unknown = edge.in_loop and edge.iterations is None
        count = edge.step_bytes * (iterations if unknown else 1)
        sent[edge.source] += count
        received[edge.destination] += count
        pair = edge.source, edge.destination
        links[pair] = links.get(pair, 0.0) + count / network.bandwidth
        rounds[edge.first] = max(rounds.get(edge.first, 0.0), latency(edge, network))
    load = {task: max(sent[task], received[task]) for task in plan.tasks}
    busiest = max(plan.tasks, key=lambda task: load[task]) if plan.edges else ""
    transfer = load[busiest] / network.bandwidth if busiest else 0.0
    waiting = sum(rounds[number] for number in sorted(rounds))
    return Prediction(transfer + waiting, busiest, transfer, waiting, len(rounds), links)


def latency(edge: Edge, network: Network) -> float:
    """Return the seconds that a tensor is under way, besides those of its bytes."""
    if edge.plan_class == "dynamic":
        return 3 * network.latency
    if edge.plan_class == "rpc":
        return 2 * network.latency + network.rpc_seconds
    return network.latency
