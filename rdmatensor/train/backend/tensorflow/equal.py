# SPDX-License-Identifier: Apache-2.0
"""Copy variables of one process to all others, and tell which ones differ."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from zlib import crc32

import keras
import numpy as np
import tensorflow as tf

from ....errors import UsageError
from ...run.membership import Membership
from ...run.session import Session
from ..buckets import buckets_of
from ..seeds import is_seed
from . import operations
from .agree import agree, labels_of
from .parts import division_of, part_of

# Smaller variables are broadcast together, up to so many bytes.
_AT_ONCE = 8 << 20
# Processors round differently, so that equal updates drift apart. What differs by a larger share of the
# variable's largest value was not updated alike.
_ROUNDING = 1e-3
# What the numbers of a complex one travel as.
_PARTS = {tf.complex64: tf.float32, tf.complex128: tf.float64}


def broadcast_variables(run: Session, variables: Sequence[Any], root: int, name: str) -> None:
    """Set variables to their values in `root`. Their order, types and shapes are the same everywhere.

    Seeds stay as they are, because they differ on purpose: processes drop out different units. Parts of
    divided variables come from the process that has the same part as this one; see parts.py.
    """
    if run.size == 1:
        return
    variables = [each for each in variables if not is_seed(each)]
    # The root waits for nobody, and would not learn that another process has other variables.
    agree(run, variables, name)
    senders = division_of(variables).senders(run, root)
    if senders is not None:
        parts = [each for each in variables if part_of(each) is not None]
        copy_from(senders[0], parts, senders[1], f"parts of {name}")
    copy_from(run, [each for each in variables if part_of(each) is None], root, name)


def comparable(variables: Sequence[Any]) -> list[Any]:
    """Return the variables that all processes have with equal values: no seeds, parts, or texts."""
    return [
        each
        for each in variables
        if not is_seed(each) and part_of(each) is None and tf.as_dtype(each.dtype) != tf.string
    ]


def differing(run: Session, variables: Sequence[Any], name: str) -> list[Any]:
    """Return the variables that are not equal, to the bit, in all processes. All get the same answer."""
    if run.size == 1 or not variables:
        return []
    values = (np.ravel(tf.convert_to_tensor(each).numpy()) for each in variables)
    marks = tf.constant([[crc32(each.view(np.uint8).data) for each in values]], tf.int64)
    detail = operations.listed(f"checksums of {name}", labels_of(variables))
    found = operations.all_gather(run, marks, detail).numpy()
    return [each for each, of in zip(variables, found.T, strict=True) if (of != of[0]).any()]


def take_rank_0s(run: Session, variables: Sequence[Any], name: str, *, always: bool) -> list[str]:
    """Set variables that differ to rank 0's values.

    Return the names of those that differ by more than rounding. These keep their values unless `always`.
    """
    far = []
    for each in differing(run, variables, name):
        mine = tf.convert_to_tensor(each)
        first = operations.broadcast(run, mine, 0, f"{_name_of(each)} of {name}")
        a, b = (tf.cast(value, tf.float64).numpy() for value in (mine, first))
        with np.errstate(invalid="ignore"):
            near = bool((np.abs(a - b) <= _ROUNDING * np.abs(b).max(initial=0)).all())
        near_everywhere = operations.all_reduce(
            run, tf.constant([near], tf.int32), "min", f"whether {_name_of(each)} differs"
        )
        if not int(near_everywhere[0]):
            far.append(_name_of(each))
        if always or _name_of(each) not in far:
            each.assign(first)
    return far


@operations.no_autograph
def refuse_different(run: Session, variables: Sequence[Any]) -> None:
    """Raise UsageError if processes begin to train with different weights.

    All processes call it in their first step, also while it is traced.
    """
    if run.size == 1 or run.group is None:
        return
    known = [each for each in variables if isinstance(each, (tf.Variable, keras.Variable))]
    with tf.init_scope():
        try:
            far = take_rank_0s(run, comparable(known), "the weights at the start", always=False)
        except tf.errors.FailedPreconditionError:  # they get their first values in this very step
            return
    if far:
        raise UsageError(
            f"processes begin with different weights: {far[0]} differs. Train with "
            "fit(callbacks=rt.callbacks()), or call rt.broadcast_variables(model.variables) before the first "
            "step: both copy rank 0's"
        )


def _name_of(variable: Any) -> str:
    return str(getattr(variable, "path", variable.name))


def copy_from(run: Membership, variables: Sequence[Any], root: int, name: str) -> None:
    """Set variables to their values in `root`, which learns nothing of others' variables."""
    if run.size == 1:
        return
    by_type: dict[Any, list[Any]] = {}
    for each in variables:
        dtype = tf.as_dtype(each.dtype)
        if dtype != tf.string:  # the state of a string table, for example, which no process changes
            by_type.setdefault(dtype, []).append(each)
    for dtype, members in by_type.items():
        sizes = [
            (i, dtype, int(np.prod(each.shape)) * dtype.size) for i, each in enumerate(members)
        ]
        buckets = buckets_of(sizes, _AT_ONCE)
        for number, bucket in enumerate(buckets):
            started = operations.start(
                run.handle,
                "broadcast",
                [_sent(members[i]) for i in bucket],
                f"{name}, {dtype.name}, {number + 1} of {len(buckets)}",
                root=root,
            )
            for i, value in zip(bucket, started.finish(), strict=True):
                # A variable would keep the memory of the operation, where the next one can use it.
                value = tf.raw_ops.DeepCopy(x=value)
                members[i].assign(_received(value, dtype))


def travels(variable: Any) -> bool:
    """Return whether `copy_from` copies variables of this one's type: numbers and truth values."""
    dtype = tf.as_dtype(variable.dtype)
    return bool(dtype in operations.TYPES or dtype in _PARTS or dtype.is_bool)


def _sent(variable: Any) -> Any:
    value = tf.convert_to_tensor(variable)
    if value.dtype in _PARTS:
        return tf.bitcast(value, _PARTS[value.dtype])
    return tf.cast(value, tf.uint8) if value.dtype.is_bool else value


def _received(value: Any, dtype: Any) -> Any:
    if dtype in _PARTS:
        return tf.bitcast(value, dtype)
    return tf.cast(value, tf.bool) if dtype.is_bool else value
