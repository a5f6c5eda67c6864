# SPDX-License-Identifier: Apache-2.0
"""Let a Keras optimizer, or a gradient tape, use the gradients of all processes."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import keras
import tensorflow as tf

from ....errors import UsageError
from ...run.session import Session, current
from ...sync.all_reduce import AllReduce
from ...sync.base import Gradients, Parameters, Synchronizer
from ...sync.compression import Compression
from .. import mixin
from ..names import plain
from ..optimizers import checked, described, iterations_of, leaves_of
from .agree import agree, labels_of, settings_of
from .equal import refuse_different
from .exchange import Exchange, Kept
from .parts import division_of
from .weighing import Weighing, of_present

# An attribute of the first variable of a tape's: all of them were equal in all processes.
_COMPARED = "_rdmatensor_compared"


class OptimizerHooks:
    """Hooks of callbacks() and save() for synchronizers that divide an optimizer's state.

    Here, they do nothing.

    All processes call its methods together.
    """

    def front(self, optimizer: Any, run: Session) -> type:
        """Return the class to put in front of the optimizer's."""
        return Distributed

    def shared(self, optimizer: Any) -> list[Any]:
        """Return the optimizer's variables that are equal in all processes."""
        return list(optimizer.variables)

    def gather(self, optimizer: Any) -> None:
        """Bring the state together before rank 0 saves the optimizer."""

    def scatter(self, optimizer: Any) -> None:
        """Divide what rank 0 has loaded."""

    def release(self, optimizer: Any) -> None:
        """Forget what `gather` brought."""

    def changed(self, optimizer: Any) -> AbstractContextManager[None]:
        """Let a callback change whole variables of the optimizer, in eager code, within the block."""
        return nullcontext()

    def resume(self, model: Any, optimizer: Any) -> None:
        """Begin an epoch."""

    def settle(self, optimizer: Any) -> None:
        """Let the model have all of its weights, before it is validated and after each epoch."""

    def leave(self, model: Any, optimizer: Any) -> None:
        """End a fit."""


class Distributed:
    """The class that `distribute` puts in front of that of an optimizer."""

    _rdmatensor_run: Session
    _rdmatensor_sync: Synchronizer
    _rdmatensor_kept: Kept | None
    _rdmatensor_described: str
    _rdmatensor_agreed: set[Any]
    _rdmatensor_variables: Sequence[Any] = ()
    compared = False
    """Whether processes are known to have begun with equal weights."""

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
        self._rdmatensor_compare(variables)
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

    def _clip_gradients(self, grads: Sequence[Any]) -> Any:
        # With accumulation, Keras comes here in the steps that update the model, and only those communicate.
        optimizer: Any = self
        if optimizer.gradient_accumulation_steps is not None:
            grads = self._rdmatensor_reduce(grads, self._rdmatensor_variables)
        return super()._clip_gradients(grads)  # type: ignore[misc]

    def _backend_apply_gradients(self, grads: Sequence[Any], variables: Sequence[Any]) -> None:
        object.__setattr__(self, "_rdmatensor_variables", variables)
        super()._backend_apply_gradients(grads, variables)  # type: ignore[misc]

    def _rdmatensor_agree(self, variables: Sequence[Any]) -> None:
        """Make sure, once, that all processes train the same variables in the same way."""
        optimizer: Any = self
        run, sync = self._rdmatensor_run, self._rdmatensor_sync
        found = run.generation, tuple(id(each) for each in variables)
        if found in self._rdmatensor_agreed:
            return
        name = plain(optimizer.name)
        lines = [self._rdmatensor_described]
        if sync.waits and not sync.apart:
            lines.extend(settings_of(optimizer))
        agree(run, variables, f"how {name} trains, and its variables", lines)
        self._rdmatensor_agreed.add(found)

    def _rdmatensor_compare(self, variables: Sequence[Any]) -> None:
        """Compare the weights of all processes, once, before the first step."""
        if not self.compared:
            object.__setattr__(self, "compared", True)
            refuse_different(self._rdmatensor_run, variables)

    def _rdmatensor_reduce(self, grads: Sequence[Any], variables: Sequence[Any]) -> list[Any]:
        optimizer: Any = self
        run, sync, name = self._rdmatensor_run, self._rdmatensor_sync, plain(optimizer.name)
        if not isinstance(sync, Gradients):
            return list(grads)
        division = division_of(variables)
        results = division.gradients(run, sync, grads, variables, name, labels_of(variables))
        if isinstance(self, keras.optimizers.LossScaleOptimizer):
            results = division.finite(results, f"the gradients of {name}")
        return results


def put_in_front(optimizer: Any, run: Session, sync: Synchronizer) -> None:
    """Give the optimizer a class that communicates, with the name and module of its own."""
    kept: Kept | None = None
    if isinstance(sync, Parameters):
        kept = Exchange(run, sync)
    elif sync.has_state:
        kept = Kept(run, sync)
    mixin.add(
        optimizer,
        hooks_of(sync).front(optimizer, run),
        _rdmatensor_run=run,
        _rdmatensor_sync=sync,
        _rdmatensor_kept=kept,
        _rdmatensor_described=described(sync),
        _rdmatensor_agreed=set(),
    )


def exchange_of(optimizer: Any) -> Exchange | None:
    """Return what exchanges parameters for this optimizer, or None."""
    kept = kept_of(optimizer)
    return kept if isinstance(kept, Exchange) else None


def kept_of(optimizer: Any) -> Kept | None:
    """Return what backups keep of this optimizer's synchronizer, or None."""
    kept: Kept | None = getattr(optimizer, "_rdmatensor_kept", None)
    return kept


def averages_gradients(sync: Synchronizer) -> bool:
    """Return whether the gradients of each step become their mean over all processes."""
    return isinstance(sync, Gradients) and sync.averages


def hooks_of(sync: Synchronizer) -> OptimizerHooks:
    """Return the hooks of a synchronizer for callbacks() and save()."""
    return sync if isinstance(sync, OptimizerHooks) else OptimizerHooks()


def trace_anew(model: Any, optimizers: Sequence[Any], run: Session) -> None:
    """Trace a step anew if the model goes on after init(): other processes may be new, and have to agree."""
    agreed = set[Any]().union(*(getattr(each, "_rdmatensor_agreed", ()) for each in optimizers))
    if agreed and all(generation != run.generation for generation, _ in agreed):
        model.train_function = None
        model.make_train_function()


def move_outwards(optimizer: Any) -> None:
    """Correct an optimizer that compile() wrapped after distribute().

    A model with a policy of its own is wrapped there. Whether a step is skipped would be decided before the
    gradients are averaged, by each process for itself.
    """
    inner = getattr(optimizer, "inner_optimizer", None)
    if isinstance(optimizer, Distributed) or not isinstance(inner, Distributed):
        return
    run, sync = inner._rdmatensor_run, inner._rdmatensor_sync
    mixin.remove(inner)
    put_in_front(optimizer, run, sync)


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
