# SPDX-License-Identifier: Apache-2.0
"""Run collective operations on the group that init() joined. Programs call them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .._api.collective import Op
from .backend.seeds import Streams
from .backend.tensorflow import operations
from .backend.tensorflow.equal import broadcast_variables as _broadcast_variables
from .backend.tensorflow.operations import no_autograph
from .keras.alike import compare, follow_variables
from .run.session import current

__all__ = ["all_gather", "all_reduce", "all_to_all", "barrier", "broadcast", "reduce_scatter"]


@no_autograph
def all_reduce(tensor: Any, op: Op = "sum", name: str = "all_reduce") -> Any:
    """Combine the tensors of all processes, element by element. Has a gradient for "mean" and "sum".

    `name` appears in errors; it has to be the same in all processes, as have type and shape. If they differ,
    every process gets InvalidArgumentError, which quotes two of them. This holds for all operations here.
    """
    return operations.all_reduce(current(), tensor, op, name)


@no_autograph
def reduce_scatter(tensor: Any, op: Op = "sum", name: str = "reduce_scatter") -> Any:
    """Return part `rank` of what all_reduce gives, cut into `size` equal parts along the first dimension."""
    return operations.reduce_scatter(current(), tensor, op, name)


@no_autograph
def all_gather(tensor: Any, name: str = "all_gather") -> Any:
    """Join the tensors of all processes along the first dimension, by rank. They have equal shapes."""
    return operations.all_gather(current(), tensor, name)


@no_autograph
def all_to_all(tensor: Any, name: str = "all_to_all") -> Any:
    """Join part `rank` of every process's tensor, by rank. Tensors are cut as in reduce_scatter."""
    return operations.all_to_all(current(), tensor, name)


@no_autograph
def broadcast(tensor: Any, root: int = 0, name: str = "broadcast") -> Any:
    """Return rank `root`'s tensor. The others give a tensor of the same type and shape."""
    return operations.broadcast(current(), tensor, root, name)


@no_autograph
def barrier(name: str = "barrier") -> None:
    """Wait until every process has called it."""
    operations.barrier(current(), name)


@no_autograph
def broadcast_variables(variables: Sequence[Any], root: int = 0) -> None:
    """Set variables of TensorFlow or Keras, or all those of a Keras model, to their values in rank `root`.

    States of Keras's SeedGenerators are the exception: they are made to differ, as callbacks() does, so that
    processes do not drop out the same units. With a model, raises UsageError if its layers differ in what is
    no variable, as fit() does.
    """
    run = current()
    model = variables if hasattr(variables, "variables") else None
    variables = list(variables if model is None else model.variables)
    if model is not None and run.size > 1:
        compare(run, model)
    _broadcast_variables(run, variables, root, "variables")
    if model is not None:
        follow_variables(model)
    if run.size > 1:
        Streams(run, variables).part(root)
