# SPDX-License-Identifier: Apache-2.0
"""horovod.tensorflow over rdmatensor: operations, tapes and optimizers.

    import rdmatensor.horovod.tensorflow as hvd

docs/horovod.md says what differs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING as _TYPE_CHECKING
from typing import Any, NoReturn

import keras as _keras

from ..absent import refuse as _refuse
from ..reductions import Adasum, Average, HorovodInternalError, Max, Min, Product, Sum
from . import elastic
from .compression import Compression
from .functions import (
    allgather_object,
    broadcast_,
    broadcast_object,
    broadcast_object_fn,
    broadcast_variables,
)
from .gradients import (
    DistributedGradientTape,
    DistributedOptimizer,
    PartialDistributedGradientTape,
)
from .operations import (
    allgather,
    allreduce,
    alltoall,
    barrier,
    broadcast,
    grouped_allgather,
    grouped_allreduce,
    grouped_reducescatter,
    join,
    reducescatter,
)
from .process import (
    Disagreement,
    ProcessSet,
    add_process_set,
    ccl_built,
    cross_rank,
    cross_size,
    cuda_built,
    ddl_built,
    global_process_set,
    gloo_built,
    gloo_enabled,
    init,
    is_homogeneous,
    is_initialized,
    local_rank,
    local_rank_op,
    local_size,
    local_size_op,
    mpi_built,
    mpi_enabled,
    mpi_threads_supported,
    nccl_built,
    process_set_included_op,
    rank,
    rank_op,
    remove_process_set,
    rocm_built,
    shutdown,
    size,
    size_op,
    start_timeline,
    stop_timeline,
)

__all__ = [
    "Adasum",
    "Average",
    "Compression",
    "Disagreement",
    "DistributedGradientTape",
    "DistributedOptimizer",
    "HorovodInternalError",
    "Max",
    "Min",
    "PartialDistributedGradientTape",
    "ProcessSet",
    "Product",
    "Sum",
    "SyncBatchNormalization",
    "add_process_set",
    "allgather",
    "allgather_object",
    "allreduce",
    "alltoall",
    "barrier",
    "broadcast",
    "broadcast_",
    "broadcast_global_variables",
    "broadcast_object",
    "broadcast_object_fn",
    "broadcast_variables",
    "ccl_built",
    "cross_rank",
    "cross_size",
    "cuda_built",
    "ddl_built",
    "elastic",
    "global_process_set",
    "gloo_built",
    "gloo_enabled",
    "grouped_allgather",
    "grouped_allreduce",
    "grouped_reducescatter",
    "init",
    "is_homogeneous",
    "is_initialized",
    "join",
    "local_rank",
    "local_rank_op",
    "local_size",
    "local_size_op",
    "mpi_built",
    "mpi_enabled",
    "mpi_threads_supported",
    "nccl_built",
    "process_set_included_op",
    "rank",
    "rank_op",
    "reducescatter",
    "remove_process_set",
    "rocm_built",
    "shutdown",
    "size",
    "size_op",
    "start_timeline",
    "stop_timeline",
]


class SyncBatchNormalization(_keras.layers.BatchNormalization):  # type: ignore[misc]
    """BatchNormalization by the batches of all processes."""

    def __init__(self, fused: bool = False, **settings: Any) -> None:
        super().__init__(**{**settings, "synchronized": True})


def broadcast_global_variables(root_rank: int) -> NoReturn:
    """Raise RuntimeError, as Horovod does in TensorFlow 2: there are no global variables."""
    raise RuntimeError(
        "there are no global variables in TensorFlow 2: call broadcast_variables(model.variables, root_rank) "
        "or give fit() a BroadcastGlobalVariablesCallback"
    )


if not _TYPE_CHECKING:
    __getattr__ = _refuse(__name__)
