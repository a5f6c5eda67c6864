# SPDX-License-Identifier: Apache-2.0
"""Copy variables of rank 0 to all processes, and tell which ones differ."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from zlib import crc32

import keras
import numpy as np

from ....errors import UsageError
from ...run.session import Session
from ..base import Array, backend
from ..names import plain, unwrapped
from ..seeds import is_seed

# Processors round differently, so that equal updates drift apart. What differs by a larger share of the
# variable's largest value was not updated alike.
_ROUNDING = 1e-3


def label(variable: Any) -> str:
    """Return the name of a variable in operations and errors, which is the same in all processes."""
    return unwrapped(plain(str(variable.path)))


def broadcast_variables(run: Session, variables: Sequence[Any], root: int, name: str) -> None:
    """Set variables to their values in `root`, but for seeds, which differ on purpose."""
    if run.group is None:
        return
    shared = [each for each in variables if not is_seed(each)]
    lines = [f"{label(each)} {each.dtype} {list(each.shape)}" for each in shared]
    run.group.barrier(timeout=run.timeout, detail="\n".join([name, *lines]))
    for each in shared:
        each.assign(backend().broadcast(run, _value(each), root, f"{label(each)} of {name}"))


def take_rank_0s(run: Session, variables: Sequence[Any], name: str) -> list[str]:
    """Set variables that differ to rank 0's values, but for those that differ by more than rounding.

    Return the names of the latter.
    """
    shared = [each for each in variables if not is_seed(each)]
    marks = np.array([[crc32(_value(each).tobytes()) for each in shared]], np.int64)
    found = backend().all_gather(run, marks, f"checksums of {name}")
    far = []
    for each, of in zip(shared, found.T, strict=True):
        if (of == of[0]).all():
            continue
        mine = _value(each)
        first = backend().broadcast(run, mine, 0, f"{label(each)} of {name}")
        a, b = mine.astype(np.float64), first.astype(np.float64)
        with np.errstate(invalid="ignore"):
            near = np.array(
                [(np.abs(a - b) <= _ROUNDING * np.abs(b).max(initial=0)).all()], np.int32
            )
        if backend().all_reduce(run, near, "min", f"whether {label(each)} differs")[0]:
            each.assign(first)
        else:
            far.append(label(each))
    return far


def refuse_different(run: Session, variables: Sequence[Any]) -> None:
    """Raise UsageError if processes begin to train with different weights. All call it."""
    far = take_rank_0s(run, variables, "the weights at the start")
    if far:
        raise UsageError(
            f"processes begin with different weights: {far[0]} differs. Train with "
            "fit(callbacks=rt.callbacks()), or call rt.broadcast_variables(model.variables) before the first "
            "step: both copy rank 0's"
        )


def _value(variable: Any) -> Array:
    value: Array = keras.ops.convert_to_numpy(variable)
    return np.array(value, order="C")
