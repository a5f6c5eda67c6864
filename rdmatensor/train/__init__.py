# SPDX-License-Identifier: Apache-2.0
"""Trains a Keras 3 model in several processes, on one host or many:

    # rdmatensor launch -n 4 train.py
    import keras, rdmatensor.train as rt
    rt.init()
    model = build()
    model.compile(rt.distribute(keras.optimizers.Adam(1e-3)), loss="mse")
    model.fit(rt.shard(data), epochs=5, callbacks=rt.callbacks())

Every process runs the same program. They exchange gradients over shared memory, RDMA or TCP. See
docs/train.md.
"""

from __future__ import annotations

import ast
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .._api.extras import needed_by

if TYPE_CHECKING:
    from .backend.tensorflow.data import shard
    from .backend.tensorflow.optimizer import GradientTape
    from .collectives import (
        all_gather,
        all_reduce,
        all_to_all,
        barrier,
        broadcast,
        broadcast_variables,
        reduce_scatter,
    )
    from .costs import statistics, trace
    from .distributing import distribute
    from .embeddings.explain import explain
    from .embeddings.parallelize import parallelize
    from .keras_callbacks import callbacks, on_rank_0
    from .run.run import Run, init, local_rank, rank, shutdown, size
    from .saving import save
    from .sharding.optimizer import ShardedOptimizer
    from .sync.all_reduce import AllReduce
    from .sync.base import Gradients, Parameters
    from .sync.compression import PowerSGD, Quantized, TopK
    from .sync.decoupled import Decoupled
    from .sync.diloco import DiLoCo
    from .sync.easgd import EASGD
    from .sync.gossip import SGP, PullGossip, PushGossip
    from .sync.gossip_pga import GossipPGA
    from .sync.hierarchical import Hierarchical
    from .sync.local_sgd import LocalSGD
    from .sync.periods import QSR, AdaComm, Quality
    from .sync.ssp import SSP
    from .tensor_parallel.model import split
    from .whole import evaluate, predict

__all__ = [
    "EASGD",
    "QSR",
    "SGP",
    "SSP",
    "AdaComm",
    "AllReduce",
    "Decoupled",
    "DiLoCo",
    "GossipPGA",
    "GradientTape",
    "Gradients",
    "Hierarchical",
    "LocalSGD",
    "Parameters",
    "PowerSGD",
    "PullGossip",
    "PushGossip",
    "Quality",
    "Quantized",
    "Run",
    "ShardedOptimizer",
    "TopK",
    "all_gather",
    "all_reduce",
    "all_to_all",
    "barrier",
    "broadcast",
    "broadcast_variables",
    "callbacks",
    "distribute",
    "evaluate",
    "explain",
    "init",
    "local_rank",
    "on_rank_0",
    "parallelize",
    "predict",
    "rank",
    "reduce_scatter",
    "save",
    "shard",
    "shutdown",
    "size",
    "split",
    "statistics",
    "trace",
]

# Names are imported when they are first used, so that what needs no TensorFlow does not import it. The
# imports above tell where they are.
_HOMES = {
    name.name: node.module
    for node in ast.walk(ast.parse(Path(__file__).read_text(encoding="utf-8")))
    if isinstance(node, ast.ImportFrom) and node.level == 1
    for name in node.names
}

if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        with needed_by(f"rdmatensor.train.{name}"):
            value = getattr(import_module(f".{_HOMES[name]}", __name__), name)
        globals()[name] = value
        return value
