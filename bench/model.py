# SPDX-License-Identifier: Apache-2.0
"""Predicts the step time of data-parallel training on networks that were not measured.

The costs of each way to move tensors are fitted to steps that bench/paper.py measured, checked by leaving
points out, and put into a model of a network. docs/papers.md has its equations and assumptions. The results
are computed, not measured.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import click
import numpy as np
from rich.table import Table
from scipy.optimize import nnls

from options import console, json_option, only_option
from paper_models import MODELS, Model
from rdmatensor.bench import record
from rdmatensor.units import duration

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


# The balance equations of PCL-DNN (Das et al., arXiv 1602.06709). A layer has ifm input maps of iw x ih, ofm
# output maps of ow x oh, and kernels of kw x kh. `overlap` (0..1) is the share of sending that overlaps with
# receiving.


def convolution_flops(
    ifm: int, ofm: int, kw: int, kh: int, ow: int, oh: int, batch: float
) -> float:
    """Operations of a node's forward and backward pass over `batch` samples."""
    return 3 * 2 * ifm * ofm * kw * kh * ow * oh * batch


def data_parallel_bytes(ifm: int, ofm: int, kw: int, kh: int, overlap: float) -> float:
    """Bytes of a layer's gradients and weights that a node moves in a step."""
    return 4 * ifm * ofm * kw * kh * (2 - overlap)


def model_parallel_bytes(ifm: int, iw: int, ih: int, batch: float) -> float:
    """Bytes of a layer's activations that a node moves if the nodes share the layer."""
    return 2 * 4 * ifm * iw * ih * batch


def prefers_model_parallel(
    ofm: int, kw: int, kh: int, iw: int, ih: int, batch: float, overlap: float
) -> bool:
    """Whether splitting the layer moves less than splitting the batch."""
    return ofm * kw * kh * (2 - overlap) > 2 * iw * ih * batch


def best_groups(
    ofm: int, kw: int, kh: int, iw: int, ih: int, batch: float, nodes: int, overlap: float
) -> float:
    """How many groups of nodes move the least, with model parallelism within groups and data parallelism
    between them."""
    return math.sqrt(2 * iw * ih * batch * nodes / (ofm * kw * kh * (2 - overlap)))


def points_of(run: record.Run) -> dict[str, list[Point]]:
    """The medians that bench/paper.py measured, for each way."""
    points: dict[str, list[Point]] = {}
    for result in run.results:
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


def fit_table(ways: list[Fitted]) -> Table:
    """The table of costs and errors."""
    table = Table(title="Costs fitted to measured steps, and errors for points and models left out")
    for header in ("way", "points", "a step", "a tensor", "bandwidth", "a point", "a model"):
        table.add_column(header, justify="left" if header == "way" else "right")
    for each in ways:
        costs = each.costs
        rate = f"{1e-9 / costs.byte_s:.3g} GB/s" if costs.byte_s else "no cost"
        table.add_row(
            each.way,
            str(each.points),
            duration(costs.step_s),
            duration(costs.tensor_s),
            rate,
            _errors(each.point_errors),
            _errors(each.model_errors),
        )
    return table


def _errors(errors: Sequence[float]) -> str:
    sizes = np.abs(errors)
    return f"median {np.median(sizes):.0%}, at most {sizes.max():.0%}"


def prediction_table(
    ways: list[Fitted], model: Model, gbps: float, batch: int, overlap: float
) -> Table:
    """The predicted step times by number of workers, and the share of computing."""
    compute_s = batch * model.compute_ms / 1e3
    table = Table(
        title=f"PREDICTED, not measured: {model.name}, batch {batch} ({duration(compute_s)}), "
        f"{gbps:g} Gb/s, as many servers as workers"
    )
    table.add_column("workers", justify="right")
    for each in ways:
        table.add_column(each.way, justify="right")
    for workers in WORKERS:
        cells = []
        for each in ways:
            seconds = predict(
                each.costs, Network(gbps), model, workers, workers, compute_s, overlap
            )
            cells.append(f"{duration(seconds)} ({compute_s / seconds:.0%})")
        table.add_row(str(workers), *cells)
    return table


@click.command()
@click.argument(
    "measured",
    nargs=-1,
    required=True,
    type=click.Path(path_type=Path, dir_okay=False, exists=True),
)
@only_option(list(MODELS))
@click.option("--batch", default=32, show_default=True, type=click.IntRange(1, 4096))
@click.option("--overlap", default=0.0, show_default=True, type=click.FloatRange(0, 1))
@json_option
def main(
    measured: tuple[Path, ...],
    only: tuple[str, ...],
    batch: int,
    overlap: float,
    json_file: Path | None,
) -> None:
    """Fit the cost model to the records MEASURED of bench/paper.py, and predict larger clusters."""
    shown = console(150)
    try:
        runs = [record.Run.read(each) for each in measured]
        ways = fitted(points_of(record.merged("Points", runs)))
    except (record.BadRecord, ValueError) as error:
        raise click.ClickException(str(error)) from None
    shown.print(fit_table(ways))
    models = [MODELS[name] for name in only or MODELS]
    for model in models:
        for gbps in RATES_GBPS:
            shown.print(prediction_table(ways, model, gbps, batch, overlap))
    if json_file:
        fields = {
            "what": "predicted by a model, not measured",
            "fits": [asdict(each) for each in ways],
            "predictions": [
                {
                    "way": each.way,
                    "model": model.name,
                    "workers": workers,
                    "servers": workers,
                    "gbps": gbps,
                    "batch": batch,
                    "overlap": overlap,
                    "seconds": predict(
                        *(each.costs, Network(gbps), model, workers, workers),
                        *(batch * model.compute_ms / 1e3, overlap),
                    ),
                }
                for each in ways
                for model in models
                for gbps in RATES_GBPS
                for workers in WORKERS
            ],
        }
        json_file.write_text(json.dumps(fields, indent=1) + "\n")


if __name__ == "__main__":
    main()
