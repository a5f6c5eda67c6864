# SPDX-License-Identifier: Apache-2.0
"""The time of a step: computation, and one full-duplex link for each worker, which is used meanwhile.

A layer's gradients are exchanged as soon as its backward pass is over, the last layers' first. Inputs of
layers that are cut travel when the layer is computed, which waits for them. With `ahead`, the next forward
pass of a layer waits for that layer's weights only, as in PCL-DNN; without, a step ends when all weights
are there, as with Sharded.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ..report.cost import Network
from .balance import Choice, all_data, choices
from .layers import FLOAT, Layer

_STEPS = 5  # after so many, a step takes as long as the one before


@dataclass(frozen=True)
class Compute:
    """Seconds in a layer: of each example, and of each batch besides, whatever its size."""

    forward: float
    backward: float
    fixed_forward: float = 0.0
    fixed_backward: float = 0.0

    def ahead(self, examples: float) -> float:
        """Return the seconds of a forward pass with this number of examples."""
        return self.fixed_forward + self.forward * examples

    def back(self, examples: float) -> float:
        """Return the seconds of a backward pass with this number of examples."""
        return self.fixed_backward + self.backward * examples

    def times(self, factor: float) -> Compute:
        """Return it for a machine that takes `factor` times as long."""
        return Compute(
            self.forward * factor,
            self.backward * factor,
            self.fixed_forward * factor,
            self.fixed_backward * factor,
        )


def by_speed(layers: Sequence[Layer], flops: float) -> list[Compute]:
    """Return the times of a worker that does this many floating point operations per second."""
    return [Compute(each.flops / flops, 2 * each.flops / flops) for each in layers]


def compute_seconds(compute: Sequence[Compute], examples: float) -> float:
    """Return the seconds of both passes through all layers."""
    return sum(each.ahead(examples) + each.back(examples) for each in compute)


def _transfer(nbytes: float, members: int, network: Network) -> float:
    """Return the seconds in which each member sends and receives this many bytes.

    They travel in a reduce-scatter and an all-gather.
    """
    if members == 1:
        return 0.0
    return nbytes / network.bandwidth + 2 * math.ceil(math.log2(members)) * network.latency


def _weights(share: Choice, workers: int, network: Network) -> float:
    """Return the seconds for gradients and weights of this worker's part, among the groups."""
    part = FLOAT * share.layer.weights * share.groups / workers
    return _transfer(2 * part * (share.groups - 1) / share.groups, share.groups, network)


def _inputs(share: Choice, batch: float, workers: int, network: Network) -> float:
    """Return the seconds for inputs and their gradients, inside a group."""
    members = workers // share.groups
    each = FLOAT * share.layer.inputs * batch / share.groups
    return _transfer(2 * each * (members - 1) / members, members, network)


def wire_seconds(shares: Sequence[Choice], batch: float, workers: int, network: Network) -> float:
    """Return the seconds for which the link is busy in a step."""
    return sum(
        _weights(each, workers, network) + _inputs(each, batch, workers, network) for each in shares
    )


def step_seconds(
    shares: Sequence[Choice],
    compute: Sequence[Compute],
    batch: float,
    workers: int,
    network: Network,
    ahead: bool = True,
) -> float:
    """Return the time of a step once steps repeat. `batch` is that of all workers."""
    own = batch / workers
    exchanges = [_weights(each, workers, network) for each in shares]
    inputs = [_inputs(each, batch, workers, network) / 2 for each in shares]
    ready = [0.0] * len(shares)
    now = link = end = before = 0.0
    for _ in range(_STEPS):
        for i, each in enumerate(compute):
            now = max(now, ready[i]) + inputs[i] + each.ahead(own)
            link += inputs[i]
        for i in reversed(range(len(shares))):
            now += inputs[i] + compute[i].back(own)
            link = max(link + inputs[i], now) + exchanges[i]
            ready[i] = link
        if not ahead:
            now = max(now, *ready)
        before, end = end, now
    return end - before


@dataclass(frozen=True)
class Point:
    """What to expect of so many workers."""

    workers: int
    alone_seconds: float
    """One worker, with the whole batch."""
    data_seconds: float
    """With Sharded: every layer data parallel, and forward passes wait for all weights."""
    best_seconds: float
    """With the best choice for each layer, and forward passes that wait for their own weights only."""

    @property
    def data_efficiency(self) -> float:
        """The share of a worker's time in which it computes, if all layers are data parallel."""
        return self.alone_seconds / self.workers / self.data_seconds

    @property
    def best_efficiency(self) -> float:
        """The share of a worker's time in which it computes, with the best choices."""
        return self.alone_seconds / self.workers / self.best_seconds


def point(
    layers: Sequence[Layer],
    compute: Sequence[Compute],
    batch: int,
    workers: int,
    network: Network,
    ahead: bool = False,
) -> Point:
    """Compare both ways to share, with or without `ahead`."""
    data = all_data(layers, batch, workers)
    ways = (data, choices(layers, batch, workers))
    return Point(
        workers,
        compute_seconds(compute, batch),
        step_seconds(data, compute, batch, workers, network, ahead),
        min(step_seconds(each, compute, batch, workers, network, ahead) for each in ways),
    )


def scaling(
    layers: Sequence[Layer],
    compute: Sequence[Compute],
    batch: int,
    network: Network,
    most: int = 1024,
) -> list[Point]:
    """Return points for 2, 4, 8, ... workers, while each has at least one example."""
    counts = [2**i for i in range(1, most.bit_length()) if 2**i <= min(most, batch)]
    return [point(layers, compute, batch, each, network) for each in counts]


_ARIES = Network(bandwidth=8e9, latency=2e-6)
_ETHERNET = Network(bandwidth=1.25e9, latency=50e-6)


@dataclass(frozen=True)
class Reported:
    """A scaling that PCL-DNN's paper reports, and what we assume of its cluster.

    The paper's nodes are 32 cores with AVX2, which we take to compute `flops` per second. Its links are Cray
    Aries or Ethernet.
    """

    network: str
    batch: int
    workers: int
    speedup: float
    flops: float = 1.4e12
    link: Network = _ARIES

    def computed(self, layers: Sequence[Layer]) -> float:
        """Return the speed-up that this model predicts."""
        compute = by_speed(layers, self.flops)
        found = point(layers, compute, self.batch, self.workers, self.link, ahead=True)
        return found.best_efficiency * self.workers


REPORTED = (
    Reported("vgg_a", 512, 128, 90),
    Reported("vgg_a", 256, 64, 53),
    Reported("overfeat_fast", 256, 64, 42),
    Reported("cd_dnn", 1024, 16, 6.5),
    Reported("vgg_a", 256, 16, 14, 1.0e12, _ETHERNET),
)
