# SPDX-License-Identifier: Apache-2.0
"""Go on after processes were lost: horovod.tensorflow.elastic, and horovod.tensorflow.keras.elastic."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from ...errors import UsageError
from ..elastic import ObjectState, State, run_fn
from .functions import allgather_object, broadcast_object, broadcast_variables
from .process import init, internal_errors, rank, shutdown

__all__ = ["ObjectState", "State", "TensorFlowKerasState", "TensorFlowState", "run"]


def run(func: Callable[..., Any]) -> Callable[..., Any]:
    """Decorate a function that trains, whose first argument is its State, so that it outlives processes.

    When another process is lost, the state goes back to its last commit(), and the function is called again
    once the launcher has started that process anew, with its rank: `rdmatensor launch --restarts`. It takes
    the state from a process that was not lost. Raises what init() raises if the others do not come.
    """

    @functools.wraps(func)
    def trained(state: State, *args: Any, **kwargs: Any) -> Any:
        with internal_errors():
            return func(state, *args, **kwargs)

    return run_fn(trained, _reset)


def _reset() -> None:
    shutdown()
    init()


class TensorFlowState(ObjectState):
    """Variables of TensorFlow or Keras, and other objects, each an attribute by the name of its argument.

    `session` is not used.
    """

    def __init__(self, variables: Sequence[Any] = (), session: Any = None, **kwargs: Any) -> None:
        self._variables = list(variables)
        if not self._variables:
            raise UsageError("TensorFlowState: give variables: TensorFlow 2 has no global ones")
        self._age = self._root = 0
        self._keep()
        super().__init__(lambda obj: broadcast_object(obj, self._root), rank, **kwargs)

    def save(self) -> None:
        """Keep the present values in memory."""
        self._age += 1
        self._keep()
        super().save()

    def restore(self) -> None:
        """Go back to the values that were kept last."""
        for variable, value in zip(self._variables, self._values, strict=True):
            variable.assign(value)
        super().restore()

    def sync(self) -> None:
        """Take the values of a process that has kept the newest ones, and keep them.

        Raises HorovodInternalError if a process is lost.
        """
        ages = allgather_object(self._age, name="ages of states")
        self._root = ages.index(max(ages))
        broadcast_variables(self._variables, self._root)
        super().sync()
        self._keep()
        self._age = max(ages) + 1

    def _keep(self) -> None:
        self._values = [tf.identity(each) for each in self._variables]


class TensorFlowKerasState(TensorFlowState):
    """A model of Keras, which is built, its optimizer, and other objects. `backend` is not used."""

    def __init__(
        self, model: Any, optimizer: Any = None, backend: Any = None, **kwargs: Any
    ) -> None:
        if not model.built:
            raise ValueError("Model must be built first. Run `model.build(input_shape)`.")
        self.model = model
        self.optimizer = optimizer or model.optimizer
        if not self.optimizer.built:
            self.optimizer.build(model.trainable_variables)
        super().__init__([*model.variables, *self.optimizer.variables], **kwargs)
