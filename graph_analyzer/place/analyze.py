# SPDX-License-Identifier: Apache-2.0
"""Turn a graph into its plan without a cluster."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from rdmatensor.plan import Options

from ..model.errors import AnalysisError
from ..model.plan import TransferPlan
from ..read import sources
from ..read.devices import parse
from ..read.placement import PlacedOn
from . import edges, placing, planner, rewriting

DEFAULT_DEVICE = "/job:worker/replica:0/task:0/device:CPU:0"


def analyze(
    source: Any,
    *,
    strategy: PlacedOn | None = None,
    cluster: Mapping[str, Sequence[str]] | None = None,
    batch_size: int | None = None,
    fetches: Sequence[Any] | None = None,
    feeds: Sequence[Any] | None = None,
    args: Sequence[Any] | None = None,
    signature: str = "serving_default",
    default_device: str = DEFAULT_DEVICE,
    optimize: bool = False,
    iterations: int | None = None,
    options: Options | None = None,
    budgets: Mapping[str, int] | None = None,
) -> TransferPlan:
    """Plan what travels in one step of `source`.

    `source` is one of

    * a tf.Graph or GraphDef with device strings, the path of such a file, or the path of a SavedModel, of
      which `signature` is analysed. `fetches` and `feeds` are those of the session: tensors, operations or
      their names. Without fetches everything in the graph runs.
    * a ConcreteFunction, or a tf.function with `args` as for get_concrete_function. Variables stay on their
      devices unless `strategy` moves them.
    * a Keras model with `strategy`: one training step of all workers.

    `batch_size` is the batch of a Keras model; for other sources it bounds unknown first dimensions. Nodes
    that name no task run on `default_device`, the session's target. `cluster` maps jobs to addresses and must
    have every device. `optimize` runs TensorFlow's graph optimiser, as sessions do. `iterations` is how
    often loops run whose condition the graph alone does not decide; without it, what they send counts once.
    `budgets` limits the memory in bytes for places by task ("/job:ps/replica:0/task:0").

    Runs nothing and connects to nothing. Raises AnalysisError for what cannot be analysed.
    """
    if batch_size is not None and batch_size < 1:
        raise AnalysisError(f"batch_size must be at least 1, got {batch_size}")
    if iterations is not None and iterations < 1:
        raise AnalysisError(f"iterations must be at least 1, got {iterations}")
    if strategy is None and cluster is not None and {"ps", "worker"} <= set(cluster):
        strategy = PlacedOn.cluster(cluster)
    request = sources.Request(default_device, strategy, batch_size, fetches, feeds, args, signature)
    chosen = options or planner.settings()
    if batch_size is not None:
        chosen = replace(chosen, batch=batch_size)
    found = transfers(source, request, optimize, iterations)
    return planner.plan(_in_cluster(found, cluster), chosen, budgets)


def transfers(
    source: Any,
    request: sources.Request,
    optimize: bool = False,
    iterations: int | None = None,
) -> edges.Transfers:
    """Find what travels, without planning it."""
    program = sources.read(source, request)
    rewriting.inline(program)
    placing.place(program)
    if optimize:
        rewriting.optimize(program)
        placing.place(program)
    rewriting.cut(program)
    placing.place(program)
    rewriting.replicate_constants(program)
    return edges.find(program, iterations)


def _in_cluster(
    found: edges.Transfers, cluster: Mapping[str, Sequence[str]] | None
) -> edges.Transfers:
    """Check that every task is in the cluster, and add the tasks that have nothing to do."""
    if cluster is None:
        return found
    known = {
        f"/job:{job}/replica:0/task:{task}"
        for job, addresses in cluster.items()
        for task in range(len(addresses))
    }
    for name in found.tasks:
        if name not in known:
            job = parse(name).job or ""
            has = len(cluster[job]) if job in cluster else 0
            raise AnalysisError(
                f"the graph uses {name}, and the cluster has {has} tasks of job {job!r}: "
                "correct the cluster or the device strings"
            )
    return edges.with_tasks(found, known)
