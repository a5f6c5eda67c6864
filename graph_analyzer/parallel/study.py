# SPDX-License-Identifier: Apache-2.0
"""Study a Keras model, or a network of PCL-DNN's paper."""

from __future__ import annotations

from typing import Any

from ..model.errors import AnalysisError
from ..report.cost import Network
from .layers import NETWORKS, layers_of
from .measure import measure, whole_step
from .report import Study
from .timeline import by_speed, compute_seconds

_LARGEST = 32  # a larger batch takes proportionally longer


def study(
    source: Any,
    title: str,
    batch: int,
    workers: int,
    network: Network,
    flops: float | None = None,
) -> Study:
    """Study how to share a Keras model, or a network by its name in NETWORKS.

    `batch` is that of all workers. Measures the layers on this machine, unless `flops` says how many
    operations a worker does per second. Raises AnalysisError if there are more workers than examples, or if
    the model's shapes are not known.
    """
    if not 1 <= workers <= batch:
        raise AnalysisError(
            f"{workers} workers and a batch of {batch}: give --batch-size, that of all workers, at least one "
            "example for each"
        )
    named = isinstance(source, str)
    layers = list(NETWORKS[source]()) if named else layers_of(source)
    own = min(max(batch // workers, 2), _LARGEST)
    part = None
    if flops:
        compute, what = by_speed(layers, flops), f"at {flops / 1e9:g} Gflop/s"
    else:
        compute = measure(layers, own)
        what = f"measured on this machine in batches of 1 and {own}"
        if not named:
            # Alone, a layer takes longer than in the whole, where operations run side by side.
            part = compute_seconds(compute, own) / whole_step(source, own)
            compute = [each.times(1 / part) for each in compute]
    return Study(title, layers, compute, what, part, batch, workers, network)
