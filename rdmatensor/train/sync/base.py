# SPDX-License-Identifier: Apache-2.0
"""What every way to keep models together has to offer, and what it gets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from ..process import Run

Array = npt.NDArray[Any]


class Synchronizer:
    """Keeps the models of several processes together. `distribute` takes one; it serves one optimizer.

    A synchronizer acts on gradients, before the optimizer uses them, or on parameters, after it has. The
    first happens in TensorFlow's graph (`gradients`). The second happens in Python: `exchange` gets all
    trainable variables as one vector. TensorFlow calls it on a thread of its own, never twice at a time.
    """

    exchanges: ClassVar[bool] = False
    """Whether `begin` and `exchange` are called."""
    waits: ClassVar[bool] = True
    """Whether processes need each other in each exchange. If so, they have to take equally many steps, and
    metrics are averaged at the end of epochs. If not, nothing but the start needs all of them."""
    apart: ClassVar[bool] = False
    """Whether models differ between exchanges although `waits` is true: a backup keeps each of them."""
    shapes: Sequence[tuple[int, ...]] = ()
    """Those of the variables in `x`, in their order. Set before `begin`."""

    def gradients(self, run: Run, gradients: Sequence[Any], name: str) -> list[Any]:
        """Changes gradients (tensors, IndexedSlices or None) while TensorFlow traces the step."""
        return list(gradients)

    def begin(self, run: Run, x: Array) -> int:
        """Called once, before the first update. Returns the step after which `exchange` is called first.

        All processes call it, and may use the group. `x`, the parameters, belongs to the caller: copy what
        you keep.
        """
        return 1

    def exchange(self, x: Array, step: int, rate: float) -> int:
        """Changes the parameters `x` in place, after `step` updates. Returns the step of the next exchange.

        `x` is float32, or float64 if a variable is. `rate` is the learning rate in force. What it raises
        ends the step with an error.
        """
        raise NotImplementedError

    def conclude(self, x: Array, step: int) -> None:
        """Called by callbacks() when fit ends, in all processes if they wait. Changes `x`, as `exchange`
        does, so that all end with one model."""

    def observe(self, loss: float) -> None:
        """Called by callbacks() after each batch of fit, with the mean loss of the batches since the last
        call."""

    def state(self) -> Mapping[str, Array]:
        """What a backup keeps of this process beside its parameters. Called between steps."""
        return {}

    def restore(self, state: Mapping[str, Array]) -> None:
        """Takes what `state` gave in an earlier program. Called before `begin`."""

    def finish(self) -> None:
        """Called when fit ends. Waits for others where they still need this process."""

    def close(self) -> None:
        """Gives up what `begin` opened. Called when the process leaves the group; may be called again."""


def as_vector(values: Sequence[npt.ArrayLike]) -> Array:
    """Joins arrays into one vector, in float64 if one of them is, else in float32."""
    arrays = [np.asarray(each) for each in values]
    dtype = np.float64 if any(each.dtype == np.float64 for each in arrays) else np.float32
    return np.concatenate([each.astype(dtype, copy=False).ravel() for each in arrays])
