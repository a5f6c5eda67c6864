# SPDX-License-Identifier: Apache-2.0
"""Let a Keras optimizer, or a gradient tape, use the gradients of all processes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import keras
import tensorflow as tf

from ....errors import UsageError
from ...run.session import Session, current
from ...sync.all_reduce import AllReduce
from ...sync.base import Gradients, Parameters, Synchronizer
from ...sync.compression import Compression
from ..distributed import Communicating, hooks_of
from ..names import plain
from ..optimizers import checked, iterations_of, leaves_of
from .agree import agree, labels_of
from .equal import refuse_different
from .exchange import Exchange, Kept
from .parts import division_of
from .weighing import Weighing, of_present

# An attribute of the first variable of a tape's: all of them were equal in all processes.
_COMPARED = "_rdmatensor_compared"


class Distributed(Communicating):
    """The class that `distribute` puts in front of that of an optimizer."""

    _rdmatensor_kept: Kept | None

    def build(self, variables: Sequence[Any]) -> None:
        """Build the optimizer after its variables' division has prepared it."""
        division_of(variables).prepare(self)
        super().build(variables)  # type: ignore[misc]

    def apply(self, grads: Sequence[Any], trainable_variables: Any = None) -> Any:
        """Apply synchronized gradients, and let the synchronizer exchange parameters when it is due."""
        optimizer: Any = self
        if trainable_variables is not None:
            trainable_variables = list(trainable_variables)
        variables = trainable_variables or optimizer._trainable_variables
        self._rdmatensor_run.check()
        division_of(variables).prepare(self)
        self._rdmatensor_agree(variables)
        exchange = exchange_of(self)
        grads = of_present(grads, self._rdmatensor_run.size)
        if optimizer.gradient_accumulation_steps is None:
            grads = self._rdmatensor_reduce(grads, variables)
        if exchange is None:
            return super().apply(grads, trainable_variables)  # type: ignore[misc]
        # Both may use one group from Python, whose operations have the same order in all processes.
        with tf.control_dependencies([each for each in grads if each is not None]):
            exchange.before(variables)
        result = super().apply(grads, trainable_variables)  # type: ignore[misc]
        # Steps that only accumulate, or that a loss scale skips, do not count.
        exchange.after(variables, iterations_of(optimizer), leaves_of(optimizer)[0].learning_rate)
        return result

    def _rdmatensor_tell(
        self, variables: Sequence[Any], heading: str, lines: Callable[[], list[str]]
    ) -> None:
        with tf.init_scope():
            more = lines()
        agree(self._rdmatensor_run, variables, heading, more)

    def _rdmatensor_compare(self, variables: Sequence[Any]) -> None:
        refuse_different(self._rdmatensor_run, variables)

    def _rdmatensor_gradients(self, grads: Sequence[Any], variables: Sequence[Any]) -> Any:
        sync: Any = self._rdmatensor_sync
        run, name = self._rdmatensor_run, plain(self.name)
        division = division_of(variables)
        results = division.gradients(run, sync, grads, variables, name, labels_of(variables))
        if isinstance(self, keras.optimizers.LossScaleOptimizer):
            results = division.finite(results, f"the gradients of {name}")
        return results


def front_of(optimizer: Any, run: Session, sync: Synchronizer) -> tuple[type, dict[str, Any]]:
    """Return the class to put in front of an optimizer's, and attributes of the optimizer."""
    kept: Kept | None = None
    if isinstance(sync, Parameters):
        kept = Exchange(run, sync)
    elif sync.has_state:
        kept = Kept(run, sync)
    return hooks_of(sync).front(optimizer, run) or Distributed, {"_rdmatensor_kept": kept}


def exchange_of(optimizer: Any) -> Exchange | None:
    """Return what exchanges parameters for this optimizer, or None."""
    kept = kept_of(optimizer)
    return kept if isinstance(kept, Exchange) else None


def kept_of(optimizer: Any) -> Kept | None:
    """Return what backups keep of this optimizer's synchronizer, or None."""
    kept: Kept | None = getattr(optimizer, "_rdmatensor_kept", None)
    return kept


def trace_anew(model: Any, optimizers: Sequence[Any], run: Session) -> None:
    """Trace a step anew if the model goes on after init(): other processes may be new, and have to agree."""
    agreed = set[Any]().union(*(getattr(each, "_rdmatensor_agreed", ()) for each in optimizers))
    if agreed and all(generation != run.generation for generation, _ in agreed):
        model.train_function = None
        model.make_train_function()


class GradientTape(tf.GradientTape):  # type: ignore[misc]
    """tf.GradientTape whose `gradient` returns the mean over all processes, for training loops of your own.

    Every process asks for gradients of the same variables, in the same order. Use a plain optimizer with it.
    Losses of Keras (keras.losses.Loss) that are computed under it are weighed, as in fit: each becomes this
    process's share, and the mean of all shares is the loss of all. So every process computes the same losses
    under it. Other losses are taken as they are.
    """

    def __init__(
        self,
        persistent: bool = False,
        watch_accessed_variables: bool = True,
        sync: AllReduce | Compression | None = None,
    ) -> None:
        super().__init__(persistent, watch_accessed_variables)
        if isinstance(sync, Synchronizer) and not isinstance(sync, (AllReduce, Compression)):
            raise UsageError(
                f"a tape averages gradients, and {type(sync).__name__} does something else: give the tape "
                "rt.sync.AllReduce(...), or give the synchronizer to distribute() and use a plain tape"
            )
        where = "GradientTape(sync=...)"
        self._rdmatensor = (
            current(),
            checked(sync, Gradients, where, 'AllReduce("auto", "float16")'),
        )
        self._weighing: list[Weighing] = []

    def __enter__(self) -> GradientTape:
        super().__enter__()
        if self._rdmatensor[0].size > 1:
            self._weighing.append(Weighing(self._rdmatensor[0]))
            self._weighing[-1].__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        if self._weighing:
            self._weighing.pop().__exit__()
        super().__exit__(*error)

    def gradient(self, target: Any, sources: Any, *more: Any, **named: Any) -> Any:
        """Return the gradients of `target`, averaged over all processes, in the structure of `sources`."""
        gradients = super().gradient(target, sources, *more, **named)
        run, sync = self._rdmatensor
        variables, flat = tf.nest.flatten(sources), tf.nest.flatten(gradients)
        first = variables[0]
        if isinstance(first, (tf.Variable, keras.Variable)) and not hasattr(first, _COMPARED):
            object.__setattr__(first, _COMPARED, True)
            refuse_different(run, variables)
        division = division_of(variables)
        division.prepare(None)
        agree(run, variables, "the variables of a tape", always=False)
        means = division.gradients(run, sync, flat, variables, "a tape", labels_of(variables))
        return tf.nest.pack_sequence_as(gradients, means, expand_composites=False)
