# SPDX-License-Identifier: Apache-2.0
"""Define the two interfaces of synchronizers: one acts on gradients, the other on parameters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar
from zlib import crc32

import numpy as np
import numpy.typing as npt

from ...errors import UsageError

if TYPE_CHECKING:
    from ..run.membership import Membership

Array = npt.NDArray[Any]


class Synchronizer:
    """The base of Gradients and Parameters: a state, of which a backup keeps a copy.

    `distribute` takes either; it serves one optimizer if it has a state.
    """

    waits: ClassVar[bool] = True
    """Whether processes need each other in each exchange. If so, they have to take equally many steps, and
    metrics are averaged at the end of epochs. If not, nothing but the start needs all of them."""

    def state(self) -> Mapping[str, Array]:
        """Return what a backup keeps of this process beside its parameters. It is called between steps."""
        return {}

    def restore(self, state: Mapping[str, Array]) -> None:
        """Take what `state` gave in an earlier program. It is called before the first step."""

    def regroup(
        self, states: Sequence[Mapping[str, Array]], rank: int, size: int
    ) -> Mapping[str, Array]:
        """Return what `restore` gets in process `rank` of `size`, if there were as many as `states`.

        Raises UsageError if it cannot go on with another number of processes.
        """
        if any(states):
            raise UsageError(
                f"{type(self).__name__} goes on with as many processes as before only: start "
                f"{len(states)} processes, not {size}"
            )
        return {}

    @property
    def has_state(self) -> bool:
        """Whether it belongs to one optimizer."""
        return type(self).state is not Synchronizer.state

    @property
    def apart(self) -> bool:
        """Whether models differ between exchanges for which processes wait."""
        return False

    def close(self) -> None:
        """Close what was opened. It is called when the process leaves the group, and may be called again."""


class Gradients(Synchronizer):
    """Change gradients before the optimizer uses them, while the framework traces the step."""

    averages: ClassVar[bool] = False
    """Whether gradients become their mean over all processes, so that losses are weighed by what they are
    means of."""
    names: Sequence[str] = ()
    """Of the variables that gradients are of, in their order. Set before `gradients`: what processes exchange
    has these names, so that they notice if they mean different variables."""

    def gradients(self, members: Membership, gradients: Sequence[Any], name: str) -> Sequence[Any]:
        """Return the gradients to apply, from tensors, IndexedSlices and None, of the processes `members`."""
        raise UsageError(f"{type(self).__name__} changes gradients: define its gradients()")


class Parameters(Synchronizer):
    """Change parameters after the optimizer has updated them, in Python: all of them as one vector.

    The framework calls it on a thread of its own, never twice at a time.
    """

    comes_back: ClassVar[bool] = False
    """Whether a process that died can come back while the others train."""
    shapes: Sequence[tuple[int, ...]] = ()
    """Those of the variables in `x`, in their order. Set before `begin`."""

    @property
    def has_state(self) -> bool:
        """Whether it belongs to one optimizer: it serves one vector."""
        return True

    @property
    def apart(self) -> bool:
        """Whether models differ between exchanges: where processes wait, they do."""
        return self.waits

    def begin(self, members: Membership, x: Array) -> int:
        """Prepare for the first update. Return the step after which `exchange` is called first.

        All processes call it, and may use the group. `x`, the parameters, belongs to the caller: copy what
        you keep. In a process that comes back, `members.group` is None, and `x` is the model of another one
        after `members.step` steps.
        """
        return 1

    def exchange(self, x: Array, step: int, learning_rate: float) -> int:
        """Change the parameters `x` in place, after `step` updates. Return the step of the next exchange.

        `x` is float32, or float64 if a variable is. `learning_rate` is the one in force. What it raises ends
        the step with an error.
        """
        raise UsageError(f"{type(self).__name__} exchanges parameters: define its exchange()")

    def conclude(self, x: Array, step: int) -> None:
        """Change `x`, as `exchange` does, so that all end with one model.

        callbacks() calls it when fit ends, in all processes if they wait.
        """

    def observe(self, loss: float) -> None:
        """Take the mean loss of the batches since the last call.

        fit() with callbacks() calls it after each batch.
        """

    def finish(self) -> None:
        """Wait for others where they still need this process. It is called when fit ends."""


def average(run: Any, x: Array, name: str) -> bool:
    """Set `x` to its mean over all processes of `run`, which all call this. Return whether anything differed.

    What is equal in all stays as it is, to the bit.
    """
    mark = np.array([crc32(x.data)], np.int64)
    marks = run.group.all_gather(mark, timeout=run.timeout, detail=f"checksums of {name}")
    if (marks == marks[0]).all():
        return False
    mean(run, x, name)
    return True


def mean(run: Any, x: Array, name: str) -> Array:
    """Set `x` to its mean over all processes of `run`, which all call this, and return it."""
    # Scaled first: the mean cannot overflow where the sum could.
    np.multiply(x, 1.0 / run.size, out=x)
    run.group.all_reduce(x, out=x, timeout=run.timeout, detail=name)
    return x


def having(state: Mapping[str, Array], start: str) -> dict[str, Array]:
    """Return the values of a state whose names begin so, under the rest of the names."""
    return {k.removeprefix(start): each for k, each in state.items() if k.startswith(start)}


def same_size(kept: Array, size: int) -> Array:
    """Return a copy of what a backup kept.

    Raises UsageError if the model has another number of parameters.
    """
    if kept.size != size:
        raise UsageError(
            f"the backup is of a model with {kept.size} parameters in a place of {size}: remove it, or "
            "train the model that it is of"
        )
    return np.array(kept)
