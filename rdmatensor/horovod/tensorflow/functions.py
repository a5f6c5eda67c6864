# SPDX-License-Identifier: Apache-2.0
"""Copy variables and Python objects between processes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from ...errors import UsageError
from ...train.backend.tensorflow import equal, operations
from ...train.backend.tensorflow.agree import label
from ...train.run.session import current
from ..pickles import dumps, loads
from .operations import allgather, broadcast
from .process import ProcessSet, global_process_set, internal_errors, members_of, rank


@operations.no_autograph
def broadcast_variables(
    variables: Sequence[Any],
    root_rank: int,
    process_set: ProcessSet = global_process_set,
    inplace: bool = False,
) -> None:
    """Set variables of TensorFlow or Keras to their values in `root_rank`, a rank among all processes.

    All processes of the set call it, in eager code or in a tf.function. Their variables agree in number,
    order, type, shape and, up to numbers, in name; or all get Disagreement. States of Keras's seeds stay, so
    that processes drop out different units. Raises HorovodInternalError if a process is lost, and UsageError
    if variables have a type that does not travel, such as texts.
    """
    members, variables = members_of(process_set), list(variables)
    for each in variables:
        if not equal.travels(each):
            raise UsageError(
                f"broadcast_variables: {label(each)} is of {tf.as_dtype(each.dtype).name}, which does not "
                "travel: leave it out, and send texts by broadcast_object"
            )
    with internal_errors():
        if members is current():
            equal.broadcast_variables(members, variables, root_rank, "variables")
            return
        variables = equal.comparable(variables)
        lines = [f"{label(each)} {each.dtype} {list(each.shape)}" for each in variables]
        with tf.init_scope():
            operations.barrier(members, operations.listed("variables", lines))
        equal.copy_from(members, variables, list(members.ranks).index(root_rank), "variables")


def broadcast_(
    variables: Sequence[Any],
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> list[Any]:
    """Do what broadcast_variables does. Return the values."""
    variables = list(variables)
    broadcast_variables(variables, root_rank, process_set)
    return [tf.identity(each) for each in variables]


def broadcast_object(
    obj: Any,
    root_rank: int = 0,
    session: Any = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Return the object of `root_rank`, which pickle can copy. Do not call it in a tf.function."""
    called, here = name or "broadcast_object", rank() == root_rank
    data = np.frombuffer(dumps(obj) if here else b"", np.uint8)
    size = broadcast(
        tf.constant([data.size], tf.int64), root_rank, f"{called}.size", process_set=process_set
    )
    sent = tf.constant(data) if here else tf.zeros(size, tf.uint8)
    found = broadcast(sent, root_rank, f"{called}.data", process_set=process_set)
    return obj if here else loads(found.numpy().tobytes())


def broadcast_object_fn(
    root_rank: int = 0,
    session: Any = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Return a function that does what broadcast_object does."""
    return lambda obj: broadcast_object(obj, root_rank, None, name, process_set)


def allgather_object(
    obj: Any,
    session: Any = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> list[Any]:
    """Return the objects of all processes, by rank. Do not call it in a tf.function."""
    called = name or "allgather_object"
    data = np.frombuffer(dumps(obj), np.uint8)
    sizes = allgather(
        tf.constant([data.size], tf.int64), f"{called}.sizes", process_set=process_set
    )
    every = allgather(tf.constant(data), f"{called}.data", process_set=process_set).numpy()
    ends = np.cumsum(sizes.numpy())
    return [loads(each.tobytes()) for each in np.split(every, ends[:-1])]
