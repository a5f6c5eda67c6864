# SPDX-License-Identifier: Apache-2.0
"""What every way to keep models together has to offer, and what it gets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, ClassVar
from zlib import crc32

import numpy as np
import numpy.typing as npt

from ...errors import UsageError

if TYPE_CHECKING:
    from ..run.run import Run

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
    averages: ClassVar[bool] = False
    """Whether the gradients of each step become their mean over all processes, so that losses are weighed
    by what they are means of."""
    comes_back: ClassVar[bool] = False
    """Whether a process that died can come back while the others train."""
    shapes: Sequence[tuple[int, ...]] = ()
    """Those of the variables in `x`, in their order. Set before `begin`."""
    names: Sequence[str] = ()
    """Of the variables that gradients are of, in their order. Set before `gradients`: what processes exchange
    has these names, so that they notice if they mean different variables."""

    def gradients(self, run: Run, gradients: Sequence[Any], name: str) -> list[Any]:
        """Changes gradients (tensors, IndexedSlices or None) while TensorFlow traces the step."""
        return list(gradients)

    def front(self, optimizer: Any, run: Run) -> type | None:
        """The class to put in front of the optimizer's, if not the one that calls `gradients`."""
        return None

    def shared(self, optimizer: Any) -> list[Any]:
        """The optimizer's variables that are equal in all processes."""
        return list(optimizer.variables)

    def gather(self, optimizer: Any) -> None:
        """Called by all processes before rank 0 saves the optimizer."""

    def scatter(self, optimizer: Any) -> None:
        """Called by all processes after rank 0 has loaded the optimizer."""

    def release(self, optimizer: Any) -> None:
        """Called when what `gather` brought is needed no more."""

    def changed(self, optimizer: Any) -> AbstractContextManager[None]:
        """Inside, an optimizer's callback changes whole variables in eager code."""
        return nullcontext()

    def resume(self, model: Any, optimizer: Any) -> None:
        """Called by callbacks() before each epoch, in all processes."""

    def settle(self, optimizer: Any) -> None:
        """Called by callbacks() before a model is validated, and after each epoch, in all processes."""

    def leave(self, model: Any, optimizer: Any) -> None:
        """Called by callbacks() when fit ends, in all processes."""

    def begin(self, run: Run, x: Array) -> int:
        """Called once, before the first update. Returns the step after which `exchange` is called first.

        All processes call it, and may use the group. `x`, the parameters, belongs to the caller: copy what
        you keep. In a process that comes back, `run.group` is None, and `x` is the model of another one after
        `run.step` steps.
        """
        return 1

    def exchange(self, x: Array, step: int, rate: float) -> int:
        """Changes the parameters `x` in place, after `step` updates. Returns the step of the next exchange.

        `x` is float32, or float64 if a variable is. `rate` is the learning rate in force. What it raises
        ends the step with an error.
        """
        raise UsageError(
            f"{type(self).__name__} says that it exchanges parameters: define its exchange()"
        )

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

    def regroup(
        self, states: Sequence[Mapping[str, Array]], rank: int, size: int
    ) -> Mapping[str, Array]:
        """What `restore` gets in process `rank` of `size`, if there were as many processes as `states`.

        Raises UsageError if it cannot go on with another number of processes.
        """
        if any(states):
            raise UsageError(
                f"{type(self).__name__} goes on with as many processes as before only: start "
                f"{len(states)} processes, not {size}"
            )
        return {}

    def finish(self) -> None:
        """Called when fit ends. Waits for others where they still need this process."""

    def close(self) -> None:
        """Gives up what `begin` opened. Called when the process leaves the group; may be called again."""


def average(run: Any, x: Array, name: str) -> bool:
    """Sets `x` to its mean over all processes of `run`, which all call this. What is equal in all stays as it
    is, to the bit. Returns whether anything differed."""
    mark = np.array([crc32(x.data)], np.int64)
    marks = run.group.all_gather(mark, timeout=run.timeout, detail=f"checksums of {name}")
    if (marks == marks[0]).all():
        return False
    # Scaled first: the mean cannot overflow where the sum could.
    np.multiply(x, 1.0 / run.size, out=x)
    run.group.all_reduce(x, out=x, timeout=run.timeout, detail=name)
    return True


def having(state: Mapping[str, Array], start: str) -> dict[str, Array]:
    """What of a state has names that begin so, under the rest of the names."""
    return {k.removeprefix(start): each for k, each in state.items() if k.startswith(start)}


def same_size(kept: Array, size: int) -> Array:
    """What a backup kept, as an own array. UsageError if the model has another number of parameters."""
    if kept.size != size:
        raise UsageError(
            f"the backup is of a model with {kept.size} parameters in a place of {size}: remove it, or "
            "train the model that it is of"
        )
    return np.array(kept)


def as_vector(values: Sequence[npt.ArrayLike]) -> Array:
    """Joins arrays into one vector, in float64 if one of them is, else in float32."""
    arrays = [np.asarray(each) for each in values]
    dtype = np.float64 if any(each.dtype == np.float64 for each in arrays) else np.float32
    return np.concatenate([each.astype(dtype, copy=False).ravel() for each in arrays])
