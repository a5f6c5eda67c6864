# SPDX-License-Identifier: Apache-2.0
"""Predicts the step time of data-parallel training on networks that were not measured.

The costs of each way to move tensors are fitted to steps that bench_paper.py measured, whose records are
--measured, checked by leaving points out, and put into a model of a network. docs/papers.md has its equations
and assumptions. The results are computed, not measured.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import numpy as np
from scipy.optimize import nnls

import record
from harness import Bench, main
from paper_models import MODELS, Model

RATES_GBPS = (25, 100, 400)
WORKERS = (8, 16, 32, 64, 128, 256, 512)
_FEWEST_POINTS = 4


@dataclass(frozen=True)
class Point:
    """A measured step, in which `tensors` tensors of `nbytes` bytes passed the only parameter server."""

    model: str
    workers: int
    tensors: int
    nbytes: int
    compute_s: float
    seconds: float


@dataclass(frozen=True)
class Costs:
    """The costs of a way, in seconds: for a step, and for each tensor and each byte at the busiest task."""

    step_s: float
    tensor_s: float
    byte_s: float

    def seconds(self, tensors: float, nbytes: float, compute_s: float) -> float:
        """The time of a step without overlap, which receives all tensors, computes, and sends all tensors."""
        return self.step_s + self.tensor_s * tensors + self.byte_s * nbytes + compute_s


@dataclass(frozen=True)
class Network:
    """The network between tasks: the rate of each task's link in Gbit/s, and the latency of one way."""

    gbps: float
    latency_s: float = 2e-6

    @property
    def byte_s(self) -> float:
        """The time that a byte takes, in seconds."""
        return 8 / (self.gbps * 1e9)


def fit(points: Sequence[Point]) -> Costs:
    """The non-negative costs with the least squares of relative errors. ValueError for too few points."""
    if len(points) < _FEWEST_POINTS:
        raise ValueError(f"{len(points)} points; {_FEWEST_POINTS} are needed: measure more models")
    rows = np.array([[1.0, p.tensors, p.nbytes] for p in points])
    # The compute time is known: a sleep takes the same time in every way.
    moved = np.array([max(0.0, p.seconds - p.compute_s) for p in points])
    weights = 1 / np.array([p.seconds for p in points])
    scales = rows.max(axis=0)
    solution, _ = nnls((rows / scales) * weights[:, None], moved * weights)
    return Costs(*(float(each) for each in solution / scales))


def left_out(
    points: Sequence[Point], group: Callable[[Point], Any] = lambda point: point
) -> list[float]:
    """Relative errors of predictions, each from a fit without the group of its point, by default the point.

    A positive error means that the prediction is too long. ValueError as for `fit`.
    """
    errors = []
    for point in points:
        costs = fit([other for other in points if group(other) != group(point)])
        predicted = costs.seconds(point.tensors, point.nbytes, point.compute_s)
        errors.append(predicted / point.seconds - 1)
    return errors


def busiest_share(model: Model, servers: int) -> tuple[int, int]:
    """The variables and the bytes of the fullest parameter server.

    TensorFlow's greedy strategy places whole variables, the largest first, on the server with the most room.
    """
    counts, loads = [0] * servers, [0] * servers
    for nbytes in sorted((4 * math.prod(shape) for shape in model.shapes), reverse=True):
        least = loads.index(min(loads))
        counts[least] += 1
        loads[least] += nbytes
    most = loads.index(max(loads))
    return counts[most], loads[most]


def predict(
    costs: Costs,
    network: Network,
    model: Model,
    workers: int,
    servers: int,
    compute_s: float,
    overlap: float = 0.0,
) -> float:
    """Seconds of a step of `workers` machines with `servers` parameter servers.

    The busiest link is that of the fullest server, which serves all workers, or that of a worker. Each byte
    costs the time of the network and that of the way's copies on the measured machine. Transfers may overlap
    with a share `overlap` of the computation.
    """
    count, nbytes = busiest_share(model, servers)
    tensors = 2 * max(workers * count, model.count)
    moved = 2 * max(workers * nbytes, model.nbytes)
    transfer = costs.seconds(tensors, moved, 0.0) + network.byte_s * moved + 2 * network.latency_s
    return compute_s + max(0.0, transfer - overlap * compute_s)


def points_of(results: Sequence[record.Result]) -> dict[str, list[Point]]:
    """The medians that bench_paper.py measured, whose records are --measured, for each way."""
    points: dict[str, list[Point]] = {}
    for result in results:
        about = result.parameters
        if result.suite != "paper" or about["every_byte_read"]:
            continue
        point = Point(
            str(about["model"]),
            int(about["workers"] or 0),
            int(about["tensors"] or 0),
            int(about["step_bytes"] or 0),
            float(about["compute_ms"] or 0) / 1e3,
            result.spread.median,
        )
        points.setdefault(result.way, []).append(point)
    return points


@dataclass(frozen=True)
class Fitted:
    """The costs of a way, and the errors of predictions for points and models that were left out."""

    way: str
    costs: Costs
    points: int
    point_errors: list[float]
    model_errors: list[float]


def fitted(points: dict[str, list[Point]]) -> list[Fitted]:
    """Fit each way. ValueError as for `fit`."""
    return [
        Fitted(way, fit(each), len(each), left_out(each), left_out(each, lambda p: p.model))
        for way, each in points.items()
    ]


def measure(
    bench: Bench, measured: tuple[str, ...] = (), batch: int = 32, overlap: float = 0.0
) -> None:
    try:
        runs = [record.Run.read(Path(each)) for each in measured]
        ways = fitted(points_of([result for run in runs for result in run.results]))
    except (record.BadRecord, ValueError) as error:
        raise click.ClickException(str(error)) from None
    for each in ways:
        for name, value, unit in (
            ("a step", each.costs.step_s, "s"),
            ("a tensor", each.costs.tensor_s, "s"),
            ("a byte", each.costs.byte_s * 1e9, "ns"),
            ("error of points left out", float(np.median(np.abs(each.point_errors))), ""),
            ("error of models left out", float(np.median(np.abs(each.model_errors))), ""),
        ):
            bench.add("costs fitted to measured steps", name, each.way, [value], unit)
    for model in bench.wanted(list(MODELS.values())):
        compute_s = batch * model.compute_ms / 1e3
        for gbps in RATES_GBPS:
            suite = f"PREDICTED, not measured: {model.name}, batch {batch}, {gbps:g} Gb/s"
            for count in WORKERS:
                for each in ways:
                    link = Network(gbps)
                    seconds = predict(each.costs, link, model, count, count, compute_s, overlap)
                    case = f"{count} workers and servers"
                    bench.add(suite, case, each.way, [seconds], overlap=overlap)


if __name__ == "__main__":
    main(measure)
