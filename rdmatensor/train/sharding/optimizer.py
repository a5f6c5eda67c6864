# SPDX-License-Identifier: Apache-2.0
"""Shard the optimizer: each process updates its strip of every variable, and keeps the state of it only.

PCL-DNN's part-reduce and part-broadcast (arXiv 1602.06709), today called ZeRO-1. shards.py cuts variables.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

import keras
import numpy as np
import tensorflow as tf

from ...errors import UsageError
from ..backend.distributed import Communicating, OptimizerHooks, put_in_front
from ..backend.names import plain
from ..backend.tensorflow import operations
from ..backend.tensorflow.optimizer import Distributed
from ..backend.tensorflow.parts import division_of
from ..backend.tensorflow.weighing import of_present
from ..run.session import Session
from ..run.subgroup import Subgroup, gather_texts
from ..sync.all_reduce import check_bucket_bytes
from ..sync.base import Array, Gradients
from .elementwise import refuse_if_not_elementwise
from .prefetch import Prefetch
from .shards import Buckets, Cut, Strip

# How many groups for weights this process has made: their names are unique, and the same in all processes.
_made = itertools.count()


@dataclass(eq=False)
class Sharded(Gradients, OptimizerHooks):
    """Synchronous training in which each of N processes keeps one N-th of the optimizer's state.

    Gradients are reduced so that each process has the mean of its strip of each variable only. It updates
    the strip, and all gather the new strips. That is as many bytes as AllReduce sends. A bucket is updated
    and gathered while the backward pass goes on.

    The optimizer's update has to be elementwise, as those of Keras are except Lamb, Muon, Adafactor and
    ScheduleFreeAdamW: distribute() refuses others with UsageError. `bucket_bytes` is that of AllReduce.
    With `prefetch`, a step of fit() with rt.callbacks() begins before all weights are there, and each layer
    waits for its own: callbacks after a batch may see weights of the step before.
    Save models with rt.save(), callbacks(backup=...) or on_rank_0(ModelCheckpoint(...)): they write the
    whole state, which loads without rdmatensor, and with any number of processes.
    """

    bucket_bytes: int | Literal["auto"] = "auto"
    prefetch: bool = False
    averages = True
    lanes: list[Subgroup] = field(default_factory=list, init=False, repr=False)
    """All processes, as groups of their own: operations of one group start in the order of the program, and
    weights need not wait for gradients that do not exist yet."""

    def __post_init__(self) -> None:
        check_bucket_bytes(self.bucket_bytes)

    def front(self, optimizer: Any, run: Session) -> type:
        """Return the class that shards the optimizer, and make groups for weights.

        Raises UsageError if it cannot.
        """
        if hasattr(_sharded(optimizer), "optimizers"):
            raise UsageError(
                "Sharded and MultiOptimizer: strips of variables have no names to choose an "
                "optimizer by: use rt.sync.AllReduce()"
            )
        if not self.lanes:
            assert run.group is not None and run.device is not None
            root = gather_texts(run, run.device.address)[0]
            for _ in range(1 + self.prefetch):
                name = f"rdmatensor.train.weights.{next(_made)}"
                self.lanes.append(Subgroup(run, range(run.size), root, name))
        if isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
            inner = optimizer.inner_optimizer
            put_in_front(inner, run, self)
            object.__setattr__(inner, "_rdmatensor_outer", True)
            return ShardedScale
        if not isinstance(optimizer, ShardedFront):
            refuse_if_not_elementwise(optimizer)
            _start_with(optimizer)
        return ShardedFront

    def shared(self, optimizer: Any) -> list[Any]:
        """Return the variables that are not cut."""
        cuts = _sharded(optimizer)._rdmatensor_cuts
        return [each for each in optimizer.variables if id(each) not in cuts]

    def gather(self, optimizer: Any) -> None:
        """Bring the whole state to rank 0."""
        inner = _sharded(optimizer)
        if inner.built:
            whole = inner._rdmatensor_gather()
            if inner._rdmatensor_run.rank == 0:
                object.__setattr__(inner, "_rdmatensor_gathered", (_step(inner), whole))

    def scatter(self, optimizer: Any) -> None:
        """Give each process its strips of the state that rank 0 has loaded."""
        _sharded(optimizer)._rdmatensor_scatter()

    @contextmanager
    def changed(self, optimizer: Any) -> Iterator[None]:
        """Take up, and publish, what a callback changes within the block."""
        inner = _sharded(optimizer)
        for each in inner._rdmatensor_strips:
            each.refresh()
        yield
        inner._rdmatensor_publish(inner._rdmatensor_strips)

    def resume(self, model: Any, optimizer: Any) -> None:
        """Let steps begin before all weights are there, if `prefetch`."""
        if self.prefetch:
            _sharded(optimizer)._rdmatensor_resume(model)

    def settle(self, optimizer: Any) -> None:
        """Wait for all weights."""
        prefetch = _sharded(optimizer)._rdmatensor_prefetch
        if prefetch is not None:
            prefetch.settle()

    def leave(self, model: Any, optimizer: Any) -> None:
        """End prefetching."""
        inner = _sharded(optimizer)
        prefetch = inner._rdmatensor_prefetch
        object.__setattr__(inner, "_rdmatensor_prefetch", None)
        if prefetch is not None:
            prefetch.end(model)

    def release(self, optimizer: Any) -> None:
        """Forget the whole state."""
        inner = _sharded(optimizer)
        object.__setattr__(inner, "_rdmatensor_gathered", None)
        object.__setattr__(inner, "_rdmatensor_loaded", None)


def _sharded(optimizer: Any) -> Any:
    return getattr(optimizer, "inner_optimizer", optimizer)


def _step(optimizer: Any) -> int:
    return int(optimizer._iterations.numpy())


def _start_with(optimizer: Any) -> None:
    """Prepare an optimizer. One that has been built, such as a loaded one, is built anew with its state."""
    loaded = None
    if optimizer.built:
        loaded = [each.numpy() for each in optimizer.variables]
        for each in optimizer.variables:
            if each is not optimizer._iterations and each is not optimizer._learning_rate:
                optimizer._untrack_variable(each)
        optimizer.built = False
    for name, value in (
        ("_rdmatensor_strips", []),  # of the variables that build() got, in their order
        ("_rdmatensor_keys", {}),  # of a variable: the key of its strip
        ("_rdmatensor_cuts", {}),  # of the id of a variable of the optimizer, if it is cut
        ("_rdmatensor_initial", loaded),
        ("_rdmatensor_loaded", None),  # the whole state, until `scatter`
        ("_rdmatensor_gathered", None),  # a step, and the whole state of that step by id
        ("_rdmatensor_outer", False),  # whether a LossScaleOptimizer reduces
        ("_rdmatensor_now", []),  # the strips that apply() is about
        ("_rdmatensor_prefetch", None),  # in fit, if steps begin before all weights are there
    ):
        object.__setattr__(optimizer, name, value)


class _Saved:
    """Optimizer that saves and loads its whole state."""

    def save_own_variables(self, store: Any) -> None:
        optimizer: Any = self
        whole = _sharded(optimizer)._rdmatensor_whole()
        for i, each in enumerate(optimizer.variables):
            store[str(i)] = whole[id(each)] if id(each) in whole else each.numpy()

    def load_own_variables(self, store: Any) -> None:
        optimizer: Any = self
        if len(store.keys()) != len(optimizer.variables):
            super().load_own_variables(store)  # type: ignore[misc]  # which warns
            return
        _sharded(optimizer)._rdmatensor_load(
            optimizer.variables, [np.asarray(store[str(i)]) for i in range(len(store.keys()))]
        )


class ShardedFront(_Saved, Distributed):
    """The optimizer that Keras built, on strips instead of variables."""

    _rdmatensor_sync: Sharded
    _rdmatensor_strips: list[Strip]
    _rdmatensor_keys: dict[Any, Any]
    _rdmatensor_cuts: dict[int, Cut]
    _rdmatensor_initial: list[Array] | None
    _rdmatensor_loaded: dict[int, Array] | None
    _rdmatensor_gathered: tuple[int, dict[int, Array]] | None
    _rdmatensor_outer: bool
    _rdmatensor_now: list[Strip]
    _rdmatensor_prefetch: Prefetch | None

    def build(self, variables: Sequence[Any]) -> None:
        """Build the optimizer for the strips of variables. Raises UsageError for scales of float8."""
        optimizer: Any = self
        if optimizer.built:
            return
        division_of(variables).prepare(self)
        for each in variables:
            if optimizer._overwrite_variable_with_gradient(each):
                raise UsageError(
                    f"{each.path} is set by its gradient, as scales of float8 are: use rt.sync.AllReduce()"
                )
            strip = Strip(each, self._rdmatensor_run)
            self._rdmatensor_strips.append(strip)
            self._rdmatensor_keys[optimizer._var_key(each)] = optimizer._var_key(strip.variable)
        super().build([each.variable for each in self._rdmatensor_strips])
        initial, self.__dict__["_rdmatensor_initial"] = self._rdmatensor_initial, None
        if initial is not None:
            self._rdmatensor_load(optimizer.variables, initial)

    def add_variable_from_reference(
        self, reference_variable: Any, name: Any = None, initializer: Any = "zeros"
    ) -> Any:
        """Add a variable of the shape of a strip, but for gradients that accumulate in each process."""
        make: Any = super().add_variable_from_reference  # type: ignore[misc]
        strip = next(
            each for each in self._rdmatensor_strips if each.variable is reference_variable
        )
        # Without a communication in each step, what accumulates are the gradients of this process.
        if name == "gradient_accumulator" and not self._rdmatensor_outer:
            return make(strip.whole, name, initializer)
        made = make(strip.variable, name, initializer)
        self._rdmatensor_cuts[id(made)] = strip.cut
        return made

    def _var_key(self, variable: Any) -> Any:
        key = super()._var_key(variable)  # type: ignore[misc]
        return self._rdmatensor_keys.get(key, key)

    def _use_weight_decay(self, variable: Any) -> Any:
        optimizer: Any = self
        whole = self._rdmatensor_strips[optimizer._get_variable_index(variable)].whole
        keys, self.__dict__["_rdmatensor_keys"] = self._rdmatensor_keys, {}
        try:  # the excluded ones are known by their own keys and names
            return super()._use_weight_decay(getattr(whole, "value", whole))  # type: ignore[misc]
        finally:
            self.__dict__["_rdmatensor_keys"] = keys

    @operations.no_autograph
    def apply(self, grads: Sequence[Any], trainable_variables: Any = None) -> Any:
        """Update the strips of this process, and gather those of all."""
        optimizer: Any = self
        if trainable_variables is None and optimizer.built:
            trainable_variables = [each.whole for each in self._rdmatensor_strips]
        self._rdmatensor_run.check()
        self._rdmatensor_agree(trainable_variables or optimizer._trainable_variables)
        if not self._rdmatensor_outer:
            trainable_variables = list(trainable_variables)
            self._rdmatensor_compare(trainable_variables)
            grads = of_present(grads, self._rdmatensor_run.size)
        self.__dict__["_rdmatensor_loaded"] = self.__dict__["_rdmatensor_gathered"] = None
        return super(Distributed, self).apply(grads, trainable_variables)  # type: ignore[misc]

    def _backend_apply_gradients(self, grads: Sequence[Any], variables: Sequence[Any]) -> None:
        optimizer: Any = self
        strips = [self._rdmatensor_strips[optimizer._get_variable_index(v)] for v in variables]
        self.__dict__["_rdmatensor_now"] = strips
        for each in strips:
            each.refresh()
        if self._rdmatensor_bucketwise():
            self._rdmatensor_pipeline(grads, strips)
            return
        steps = optimizer.gradient_accumulation_steps
        if not steps and not self._rdmatensor_outer:
            grads = self._rdmatensor_reduce_strips(grads, strips)
        super()._backend_apply_gradients(grads, [each.variable for each in strips])
        if steps and not optimizer.ema_overwrite_frequency:
            due = (optimizer._iterations + 1) % steps == 0
            keras.ops.cond(due, lambda: self._rdmatensor_publish(strips), lambda: None)
        else:
            self._rdmatensor_publish(strips)

    def _rdmatensor_bucketwise(self) -> bool:
        """Return whether a bucket can be updated before others have been reduced."""
        optimizer: Any = self
        updates_all = type(optimizer)._backend_update_step
        return (
            not self._rdmatensor_outer
            and not optimizer.gradient_accumulation_steps
            and not optimizer.clipnorm
            and not optimizer.global_clipnorm
            and not optimizer.use_ema
            and updates_all is keras.optimizers.Optimizer._backend_update_step
        )

    def _rdmatensor_pipeline(self, grads: Sequence[Any], strips: Sequence[Strip]) -> None:
        optimizer: Any = self
        buckets = self._rdmatensor_buckets(grads, strips)
        prefetch = self._rdmatensor_prefetch
        if prefetch is not None and prefetch.buckets.members != buckets.members:
            raise UsageError(
                "Sharded(prefetch=True): variables have no gradients, or of other types"
            )
        started = [buckets.start_reduce(number, grads) for number in range(len(buckets))]
        tokens = []
        for number, reduced in enumerate(started):
            variables = [strips[i].variable for i in buckets.members[number]]
            own = optimizer._clip_gradients(reduced())
            optimizer._apply_weight_decay(variables)
            optimizer._backend_update_step(own, variables, optimizer.learning_rate)
            if prefetch is None:
                tokens.append(buckets.start_gather(number))
            else:
                prefetch.defer(number)
        for number, token in enumerate(tokens):
            buckets.finish_gather(number, token)

    def _rdmatensor_resume(self, model: Any) -> None:
        """Let the following steps of fit begin before all weights are there, where that is possible."""
        if self._rdmatensor_prefetch is not None:
            self._rdmatensor_prefetch.resume()
            return
        strips = self._rdmatensor_strips
        constrained = any(each.whole.constraint is not None for each in strips)
        if self._rdmatensor_bucketwise() and not constrained:
            buckets = self._rdmatensor_buckets([each.variable for each in strips], strips)
            prefetch = self.__dict__["_rdmatensor_prefetch"] = Prefetch(strips, buckets)
            prefetch.begin(model)

    def _rdmatensor_buckets(self, grads: Sequence[Any], strips: Sequence[Strip]) -> Buckets:
        optimizer: Any = self
        dtypes = [each.dtype for each in grads]
        sync = self._rdmatensor_sync
        run, name = self._rdmatensor_run, optimizer.name
        return Buckets(run, sync.lanes, strips, dtypes, sync.bucket_bytes, name)

    def _rdmatensor_reduce_strips(self, grads: Sequence[Any], strips: Sequence[Strip]) -> list[Any]:
        """Return the mean of each gradient, as far as this process's strip goes."""
        buckets = self._rdmatensor_buckets(grads, strips)
        started = [buckets.start_reduce(number, grads) for number in range(len(buckets))]
        results = list(grads)
        for members, finish in zip(buckets.members, started, strict=True):
            for i, own in zip(members, finish(), strict=True):
                results[i] = own
        return results

    def _rdmatensor_publish(self, strips: Sequence[Strip]) -> None:
        """Set variables to the strips of all processes."""
        buckets = self._rdmatensor_buckets([each.variable for each in strips], strips)
        tokens = [buckets.start_gather(number) for number in range(len(buckets))]
        for number, token in enumerate(tokens):
            buckets.finish_gather(number, token)

    def _clip_gradients(self, grads: Sequence[Any]) -> Any:
        optimizer: Any = self
        if optimizer.gradient_accumulation_steps and not self._rdmatensor_outer:
            grads = self._rdmatensor_reduce_strips(grads, self._rdmatensor_now)
        if optimizer.clipnorm:
            most = optimizer.clipnorm
            norms = tf.unstack(tf.sqrt(self._rdmatensor_squares(grads)))
            return [
                each * tf.cast(most / tf.maximum(norm, most), each.dtype)
                for each, norm in zip(grads, norms, strict=True)
            ]
        if optimizer.global_clipnorm:
            most = optimizer.global_clipnorm
            norm = tf.sqrt(tf.reduce_sum(self._rdmatensor_squares(grads)))
            # A norm that is not finite gives gradients that are not.
            factor = most * tf.minimum(1.0 / norm, 1.0 / most) + (norm - norm)
            return [each * tf.cast(factor, each.dtype) for each in grads]
        return super(Communicating, self)._clip_gradients(grads)  # type: ignore[misc]

    def _rdmatensor_squares(self, grads: Sequence[Any]) -> Any:
        """Return the squared norm of each whole gradient, as a vector of float32."""
        optimizer: Any = self
        own = tf.stack([tf.reduce_sum(tf.square(tf.cast(each, tf.float32))) for each in grads])
        return operations.all_reduce(
            self._rdmatensor_run, own, "sum", f"norms of {plain(optimizer.name)}"
        )

    def finalize_variable_values(self, var_list: Sequence[Any]) -> None:
        """Set variables to the moving averages of all strips, if there are any."""
        optimizer: Any = self
        if optimizer.use_ema:
            strips = [self._rdmatensor_strips[optimizer._get_variable_index(v)] for v in var_list]
            optimizer._overwrite_model_variables_with_average_value(
                [each.variable for each in strips]
            )
            self._rdmatensor_publish(strips)

    def _rdmatensor_whole(self) -> dict[int, Array]:
        """Return the whole state that `gather` brought. Raises UsageError if it did not in this step."""
        if not self._rdmatensor_cuts:
            return {}
        if self._rdmatensor_gathered is None or self._rdmatensor_gathered[0] != _step(self):
            raise UsageError(
                "the optimizer's state is in strips, one in each process: let all processes call "
                "rt.save(model, path), or use rt.callbacks(backup=...) or "
                "rt.on_rank_0(keras.callbacks.ModelCheckpoint(...)) with whole epochs"
            )
        return self._rdmatensor_gathered[1]

    def _rdmatensor_gather(self) -> dict[int, Array]:
        """Return the whole state, by the ids of variables, in rank 0; elsewhere {}. All processes call it."""
        optimizer: Any = self
        run, whole = self._rdmatensor_run, {}
        for number, each in enumerate(optimizer.variables):
            cut = self._rdmatensor_cuts.get(id(each))
            if cut is not None:
                rows = operations.all_gather(
                    run, tf.convert_to_tensor(each), f"state {number} of {plain(optimizer.name)}"
                )
                if run.rank == 0:
                    whole[id(each)] = cut.whole(rows).numpy()
        return whole

    def _rdmatensor_load(self, variables: Sequence[Any], values: Sequence[Array]) -> None:
        """Take this process's strips of a whole state."""
        loaded = {}
        for each, value in zip(variables, values, strict=True):
            cut = self._rdmatensor_cuts.get(id(each))
            if cut is not None and value.shape == cut.shape:
                loaded[id(each)] = value
            each.assign(value if cut is None else cut.own(value))
        if self._rdmatensor_run.rank == 0:
            self.__dict__["_rdmatensor_loaded"] = loaded

    def _rdmatensor_scatter(self) -> None:
        """Give all processes their strips of what rank 0 has loaded."""
        optimizer: Any = self
        loaded = self._rdmatensor_loaded or {}
        for number, each in enumerate(optimizer.variables):
            cut = self._rdmatensor_cuts.get(id(each))
            if cut is not None:
                value = loaded.get(id(each))
                value = tf.zeros(cut.shape, each.dtype) if value is None else value
                name = f"state {number} of {plain(optimizer.name)}"
                each.assign(cut.own(operations.broadcast(self._rdmatensor_run, value, 0, name)))


class ShardedScale(_Saved, Distributed):
    """Keras's LossScaleOptimizer around a sharded optimizer. It reduces, so that all skip the same steps."""

    @operations.no_autograph
    def apply(self, grads: Sequence[Any], trainable_variables: Any = None) -> Any:
        """Reduce gradients to strips, and apply them if all are finite."""
        optimizer: Any = self
        inner = optimizer.inner_optimizer
        if trainable_variables is not None:
            trainable_variables = list(trainable_variables)
        if not optimizer.built:
            optimizer.build(trainable_variables)
        elif not inner.built:
            inner.build(trainable_variables or optimizer._trainable_variables)
        variables = trainable_variables or [each.whole for each in inner._rdmatensor_strips]
        self._rdmatensor_agree(variables)
        self._rdmatensor_compare(variables)
        grads = of_present(grads, self._rdmatensor_run.size)
        present = [i for i, each in enumerate(grads) if each is not None]
        strips = [
            inner._rdmatensor_strips[inner._get_variable_index(variables[i])] for i in present
        ]
        reduced = list(grads)
        found = inner._rdmatensor_reduce_strips([grads[i] for i in present], strips)
        for i, own in zip(present, found, strict=True):
            reduced[i] = own
        return super(Distributed, self).apply(reduced, variables)  # type: ignore[misc]

    def check_finite(self, grads: Sequence[Any]) -> Any:
        """Return whether the gradients of all processes are finite."""
        optimizer: Any = self
        finite = tf.cast(super().check_finite(grads), tf.int32)  # type: ignore[misc]
        name = f"whether gradients of {plain(optimizer.name)} are finite"
        return operations.all_reduce(self._rdmatensor_run, finite, "min", name) > 0
