# SPDX-License-Identifier: Apache-2.0
"""Combine the gradients of all processes: of a tape, and of an optimizer."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cache, wraps
from typing import Any

import keras
import tensorflow as tf

from ...errors import Unsupported, UsageError
from ...train.backend import mixin
from ...train.backend.distributed import OptimizerHooks
from ...train.backend.interim import trainer_with
from ...train.backend.tensorflow import gradients as averages
from ...train.backend.tensorflow.agree import labels_of
from ...train.backend.tensorflow.operations import no_autograph
from ...train.backend.tensorflow.optimizer import Distributed
from ...train.keras.distributing import distribute
from ...train.keras.optimizers import distributed
from ...train.run.session import Session
from ...train.sync.base import Gradients
from ..absent import refuse_adasum
from ..reductions import Average, ReduceOp, Sum, chosen
from .compression import Compression
from .operations import grouped_allreduce, scaled
from .process import ProcessSet, global_process_set, internal_errors, members_of


@dataclass(eq=False)
class Settings(Gradients, OptimizerHooks):
    """How gradients are combined."""

    op: ReduceOp = Average
    compression: Any = Compression.none
    sparse_as_dense: bool = False
    predivide: float = 1.0
    process_set: ProcessSet = global_process_set
    scale_local: bool = True
    local: set[Any] = field(default_factory=set)
    """References to variables whose gradients stay here."""

    def __post_init__(self) -> None:
        self.op = chosen(None, self.op)
        refuse_adasum(self.op)
        if self.op not in (Average, Sum):
            raise UsageError(f"gradients by {self.op.name}: give Average or Sum")
        if self.predivide != 1.0 and self.op != Average:
            raise UsageError("gradient_predivide_factor needs op=Average")

    def front(self, optimizer: Any, run: Session) -> type:
        """Return the class to put in front of the optimizer's."""
        return HorovodOptimizer

    def keep(self, variables: Iterable[Any]) -> None:
        """Let the gradients of some variables stay here."""
        self.local.update(_reference(each) for each in variables)

    @no_autograph
    def combine(self, grads: Sequence[Any], variables: Sequence[Any], name: str) -> list[Any]:
        """Return the combined gradients. None stays None."""
        if not self.process_set.included():
            return list(grads)
        members = members_of(self.process_set)
        results = [_dense(each) if self.sparse_as_dense else each for each in grads]
        if members.size == 1:
            return results
        there = []
        for i, each in enumerate(variables):
            if _reference(each) not in self.local:
                there.append(i)
            elif self.scale_local and results[i] is not None:
                results[i] = _times(results[i], 1.0 / members.size)
        names = [labels_of(variables)[i] for i in there]
        with internal_errors():
            found = self._combined(members, [results[i] for i in there], name, names)
        for i, value in zip(there, found, strict=True):
            results[i] = value
        return results

    def _combined(self, members: Any, grads: list[Any], name: str, names: list[str]) -> list[Any]:
        wire = {Compression.none: None, Compression.fp16: "float16"}
        if self.compression not in wire:
            return self._by_hand(grads, name)
        reduction: Any = "sum" if self.op == Sum or self.predivide != 1.0 else "mean"
        if self.predivide != 1.0:
            grads = [_times(each, 1.0 / self.predivide) for each in grads]
        # A predivided mean travels as a sum. Without its name, it would match the sums of other settings.
        first = f", divided by {self.predivide} first" if self.predivide != 1.0 else ""
        name = f"{name} by {self.op.name.lower()}{first}"
        sent = wire[self.compression]
        found = averages.mean(members, grads, "auto", sent, name, names, reduction)
        if self.predivide != 1.0:
            found = [_times(each, self.predivide / members.size) for each in found]
        return found

    def _by_hand(self, grads: list[Any], name: str) -> list[Any]:
        """Combine gradients that a compression of the program's changes."""
        present = [i for i, each in enumerate(grads) if each is not None]
        found = grouped_allreduce(
            [grads[i] for i in present],
            op=self.op,
            compression=self.compression,
            process_set=self.process_set,
            name=f"gradients of {name}",
        )
        for i, value in zip(present, found, strict=True):
            grads[i] = value
        return grads


def _reference(variable: Any) -> Any:
    value = getattr(variable, "value", variable)
    return value.ref() if isinstance(value, tf.Variable) else id(variable)


def _dense(gradient: Any) -> Any:
    return gradient if gradient is None else tf.convert_to_tensor(gradient)


def _times(gradient: Any, factor: float) -> Any:
    if isinstance(gradient, tf.IndexedSlices):
        values = scaled(gradient.values, factor)
        return tf.IndexedSlices(values, gradient.indices, gradient.dense_shape)
    return None if gradient is None else scaled(gradient, factor)


class HorovodOptimizer(Distributed):
    """The class in front of that of an optimizer, which combines gradients as its Settings say.

    Processes may begin with different weights, and trace their steps without each other, as with Horovod.
    """

    def apply(self, grads: Sequence[Any], trainable_variables: Any = None) -> Any:
        """Apply the combined gradients. Raises HorovodInternalError if a process is lost."""
        with internal_errors():
            return super().apply(grads, trainable_variables)

    def _rdmatensor_agree(self, variables: Sequence[Any]) -> None:
        # Operations carry the names of variables, and fail where processes mean different ones.
        pass

    def _rdmatensor_reduce(self, grads: Sequence[Any], variables: Sequence[Any]) -> list[Any]:
        settings: Any = self._rdmatensor_sync
        return list(settings.combine(grads, variables, "the optimizer"))

    def register_local_var(self, var: Any) -> None:
        """Let the gradient of a variable stay in this process."""
        settings: Any = self._rdmatensor_sync
        settings.keep([var])


class _Summing:
    """Apply the sum of the gradients of several passes, where Keras applies their mean."""

    def _clip_gradients(self, grads: Sequence[Any]) -> Any:
        passes = self.gradient_accumulation_steps  # type: ignore[attr-defined]
        return super()._clip_gradients([_times(each, float(passes)) for each in grads])  # type: ignore[misc]


def sum_passes(optimizer: Any) -> None:
    """Let an optimizer that accumulates gradients apply their sum."""
    mixin.add(optimizer, _Summing)


@cache
def _name_losses() -> None:
    """Let the training functions of Keras raise HorovodInternalError."""
    trainer = trainer_with("make_train_function")
    make: Any = vars(trainer)["make_train_function"]

    @wraps(make)
    def made(model: Any, force: bool = False) -> Any:
        before = model.train_function
        result = make(model, force)
        function = model.train_function
        if function is before or not any(
            isinstance(x, HorovodOptimizer) for x in distributed(model)
        ):
            return result

        def named(*arguments: Any) -> Any:
            with internal_errors():
                return function(*arguments)

        model.train_function = named
        return result

    trainer.make_train_function = made  # type: ignore[attr-defined]


def DistributedOptimizer(  # noqa: N802  the name is Horovod's
    optimizer: Any,
    name: str | None = None,
    use_locking: bool = False,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    sparse_as_dense: bool = False,
    backward_passes_per_step: int = 1,
    op: int = Average,
    gradient_predivide_factor: float = 1.0,
    average_aggregated_gradients: bool = False,
    num_groups: int = 0,
    groups: Any = None,
    process_set: ProcessSet = global_process_set,
    scale_local_gradients: bool = True,
    local_variables: Iterable[Any] = (),
) -> Any:
    """Make a Keras 3 optimizer apply the gradients of all processes, combined by `op`. Return it.

    It keeps its class, its state and its settings, so what is saved loads without rdmatensor. With
    `backward_passes_per_step`, the sum of so many gradients is applied, or their mean with
    `average_aggregated_gradients`. Gradients of `local_variables` stay here. Names, devices and groups are
    ignored: gradients travel in buckets. Raises UsageError if it is distributed already, or built already
    and passes are to be added up, and Unsupported for an optimizer that is not Keras 3's.
    """
    if not isinstance(optimizer, keras.optimizers.Optimizer):
        raise Unsupported(
            f"{type(optimizer).__name__} is no optimizer of Keras {keras.__version__}: use keras.optimizers, "
            "or DistributedGradientTape with any optimizer",
            "UNSUPPORTED",
        )
    settings = Settings(
        ReduceOp(op),
        compression,
        sparse_as_dense,
        gradient_predivide_factor,
        process_set,
        scale_local_gradients,
    )
    settings.keep(local_variables)
    passes = int(backward_passes_per_step)
    if passes < 1:
        raise UsageError(f"backward_passes_per_step is {passes}: give 1 or more")
    if passes > 1 and (optimizer.built or optimizer.gradient_accumulation_steps):
        raise UsageError(
            "backward_passes_per_step: the optimizer is built, or accumulates gradients, already: give a new "
            "one to DistributedOptimizer"
        )
    inner = optimizer
    result = distribute(optimizer, settings)
    if result is not optimizer:  # a loss scale is around it
        inner = result.inner_optimizer
    if passes > 1:
        inner.gradient_accumulation_steps = passes
        if not average_aggregated_gradients:
            sum_passes(inner)
    _name_losses()
    return result


class _Tape:
    """The class in front of that of a tape."""

    _horovod: Settings

    def gradient(self, target: Any, sources: Any, *more: Any, **named: Any) -> Any:
        """Return the gradients of `target`, combined over all processes, in the structure of `sources`."""
        found = super().gradient(target, sources, *more, **named)  # type: ignore[misc]
        # One source may have a gradient that is a structure of tensors.
        grads = tf.nest.flatten(found, expand_composites=False)
        combined = self._horovod.combine(grads, tf.nest.flatten(sources), "a tape")
        return tf.nest.pack_sequence_as(found, combined, expand_composites=False)

    def get_local_and_global_gradients(
        self, target: Any, sources: Sequence[Any], output_gradients: Any = None, **named: Any
    ) -> tuple[list[Any], list[Any]]:
        """Return pairs of variables and gradients: of those that stay here, and of the combined ones."""
        named.pop("use_generic_names", None)
        found = self.gradient(target, sources, output_gradients, **named)
        pairs: tuple[list[Any], list[Any]] = ([], [])
        for source, gradient in zip(sources, found, strict=True):
            pairs[_reference(source) not in self._horovod.local].append((source, gradient))
        return pairs

    def register_local_source(self, source: Any) -> None:
        """Let the gradient of a variable stay in this process."""
        self._horovod.keep([source])


def DistributedGradientTape(  # noqa: N802  the name is Horovod's
    gradtape: Any,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    sparse_as_dense: bool = False,
    op: int = Average,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: Any = None,
    process_set: ProcessSet = global_process_set,
    scale_local_gradients: bool = True,
) -> Any:
    """Return a tape like `gradtape`, whose `gradient` combines the gradients of all processes by `op`.

    Every process asks for gradients of the same variables, in the same order. `gradtape` stays as it is.
    Devices and groups are ignored.
    """
    settings = Settings(
        ReduceOp(op),
        compression,
        sparse_as_dense,
        gradient_predivide_factor,
        process_set,
        scale_local_gradients,
    )
    tape = copy.copy(gradtape)
    mixin.add(tape, _Tape, _horovod=settings)
    tape._recording = False  # the one that was given ends what it records
    return tape


def PartialDistributedGradientTape(  # noqa: N802  the name is Horovod's
    gradtape: Any,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    sparse_as_dense: bool = False,
    op: int = Average,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: Any = None,
    process_set: ProcessSet = global_process_set,
    local_layers: Any = None,
    scale_local_gradients: bool = True,
) -> Any:
    """Return what DistributedGradientTape does; gradients of `local_layers` stay in this process."""
    tape = DistributedGradientTape(
        gradtape,
        compression=compression,
        sparse_as_dense=sparse_as_dense,
        op=op,
        gradient_predivide_factor=gradient_predivide_factor,
        process_set=process_set,
        scale_local_gradients=scale_local_gradients,
    )
    tape._horovod.keep(weights_of(local_layers))
    return tape


def weights_of(layers: Any) -> list[Any]:
    """Return the trainable weights of a layer, of several, or of None."""
    found = [] if layers is None else layers if isinstance(layers, (list, tuple, set)) else [layers]
    if not all(isinstance(each, keras.layers.Layer) for each in found):
        raise UsageError("local_layers: give layers of Keras")
    return [weight for each in found for weight in each.trainable_weights]
