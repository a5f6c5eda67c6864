# SPDX-License-Identifier: Apache-2.0
"""horovod.tensorflow.keras over rdmatensor: optimizers and callbacks of Keras 3.

    import rdmatensor.horovod.tensorflow.keras as hvd

docs/horovod.md says what differs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING as _TYPE_CHECKING
from typing import Any

import keras as _keras
import tensorflow as _tf

from ....errors import UsageError as _UsageError
from ....train.backend.optimizers import leaves_of as _leaves_of
from ...absent import refuse as _refuse
from .. import (
    Average,
    Compression,
    HorovodInternalError,
    ProcessSet,
    Sum,
    add_process_set,
    broadcast_global_variables,
    broadcast_object,
    ccl_built,
    cross_rank,
    cross_size,
    cuda_built,
    ddl_built,
    global_process_set,
    gloo_built,
    gloo_enabled,
    init,
    is_initialized,
    local_rank,
    local_size,
    mpi_built,
    mpi_enabled,
    mpi_threads_supported,
    nccl_built,
    rank,
    remove_process_set,
    rocm_built,
    shutdown,
    size,
    start_timeline,
    stop_timeline,
)
from .. import gradients as _gradients
from .. import operations as _operations
from . import callbacks, elastic

__all__ = [
    "Average",
    "Compression",
    "DistributedOptimizer",
    "HorovodInternalError",
    "PartialDistributedOptimizer",
    "ProcessSet",
    "Sum",
    "add_process_set",
    "allgather",
    "allreduce",
    "broadcast",
    "broadcast_global_variables",
    "broadcast_object",
    "callbacks",
    "ccl_built",
    "cross_rank",
    "cross_size",
    "cuda_built",
    "ddl_built",
    "elastic",
    "global_process_set",
    "gloo_built",
    "gloo_enabled",
    "init",
    "is_initialized",
    "load_model",
    "local_rank",
    "local_size",
    "mpi_built",
    "mpi_enabled",
    "mpi_threads_supported",
    "nccl_built",
    "rank",
    "reducescatter",
    "remove_process_set",
    "rocm_built",
    "shutdown",
    "size",
    "start_timeline",
    "stop_timeline",
]


def DistributedOptimizer(  # noqa: N802  the name is Horovod's
    optimizer: Any,
    name: str | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    sparse_as_dense: bool = False,
    gradient_predivide_factor: float = 1.0,
    op: int = Average,
    *,  # horovod.keras and horovod.tensorflow.keras have what follows in different orders
    backward_passes_per_step: int = 1,
    average_aggregated_gradients: bool = False,
    num_groups: int = 0,
    groups: Any = None,
    process_set: ProcessSet = global_process_set,
    scale_local_gradients: bool = True,
) -> Any:
    """Do what rdmatensor.horovod.tensorflow.DistributedOptimizer does."""
    return _gradients.DistributedOptimizer(
        optimizer,
        compression=compression,
        sparse_as_dense=sparse_as_dense,
        gradient_predivide_factor=gradient_predivide_factor,
        op=op,
        backward_passes_per_step=backward_passes_per_step,
        average_aggregated_gradients=average_aggregated_gradients,
        process_set=process_set,
        scale_local_gradients=scale_local_gradients,
    )


def PartialDistributedOptimizer(  # noqa: N802  the name is Horovod's
    optimizer: Any, *more: Any, local_layers: Any = None, **named: Any
) -> Any:
    """Do what DistributedOptimizer does; gradients of `local_layers`, which are built, stay here."""
    result = DistributedOptimizer(optimizer, *more, **named)
    if isinstance(result, _gradients.HorovodOptimizer):
        for each in _gradients.weights_of(local_layers):
            result.register_local_var(each)
    return result


def allreduce(
    value: Any,
    name: str | None = None,
    average: bool | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    op: int | None = None,
    compression: Any = Compression.none,
) -> Any:
    """Combine what tf.constant takes over all processes: by default, to the mean. See `allreduce` there."""
    return _operations.allreduce(
        _tf.convert_to_tensor(value),
        average,
        compression=compression,
        op=op,
        prescale_factor=prescale_factor,
        postscale_factor=postscale_factor,
        name=name,
    )


def allgather(value: Any, name: str | None = None) -> Any:
    """Join the values of all processes along the first dimension, in which they may differ."""
    return _operations.allgather(_tf.convert_to_tensor(value), name)


def broadcast(value: Any, root_rank: int, name: str | None = None) -> Any:
    """Return the value of `root_rank`. The others give one of the same type and shape."""
    return _operations.broadcast(_tf.convert_to_tensor(value), root_rank, name)


def reducescatter(value: Any, name: str | None = None, op: int = Average) -> Any:
    """Return this process's rows of what allreduce gives."""
    return _operations.reducescatter(_tf.convert_to_tensor(value), op=op, name=name)


def load_model(
    filepath: Any,
    custom_optimizers: Any = None,
    custom_objects: Any = None,
    compression: Any = Compression.none,
    legacy_opts: bool = False,
    average_aggregated_gradients: bool = False,
) -> Any:
    """Load a model of Keras, and make its optimizer, with its state, a DistributedOptimizer.

    An optimizer that was saved with `backward_passes_per_step` applies the sum of so many gradients again, or
    their mean with `average_aggregated_gradients`. Raises what keras.models.load_model raises, and UsageError
    if the model was saved without an optimizer, or if a function is given for one.
    """
    objects = {each.__name__: each for each in custom_optimizers or ()} | dict(custom_objects or {})
    try:
        model = _keras.models.load_model(filepath, custom_objects=objects)
    except ValueError as error:
        if "optimizer identifier" not in str(error):
            raise
        raise _UsageError(
            f"{filepath}: {error}: give the class of the optimizer, which load_model distributes"
        ) from error
    if getattr(model, "optimizer", None) is None:
        raise _UsageError(f"{filepath} has no optimizer: load it with keras, and compile it")
    DistributedOptimizer(model.optimizer, compression=compression)
    for each in _leaves_of(model.optimizer):
        if each.gradient_accumulation_steps and not average_aggregated_gradients:
            _gradients.sum_passes(each)
    return model


if not _TYPE_CHECKING:
    __getattr__ = _refuse(__name__)
