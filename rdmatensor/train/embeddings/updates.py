# SPDX-License-Identifier: Apache-2.0
"""Let a Keras optimizer update rows of tables, and keep the state of owned rows with them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import keras
import tensorflow as tf

from ..backend import mixin
from ..backend.tensorflow import operations
from ..backend.tensorflow.optimizer import Distributed
from ..keras.saving import Whole
from ..run.session import current
from .placement import Placement, is_owned, place, placement_of, reduce


class RowWise(Whole):
    """The class that `update_by_rows` puts in front of an optimizer's, distributed or not."""

    _rdmatensor_variables: Sequence[Any] = ()

    def add_variable_from_reference(self, reference_variable: Any, *more: Any, **named: Any) -> Any:
        """Place a variable of the optimizer like the table that it belongs to."""
        variable = super().add_variable_from_reference(  # type: ignore[misc]
            reference_variable, *more, **named
        )
        placement = placement_of(reference_variable)
        if placement is not None:
            place(variable, placement)
        return variable

    def apply(self, grads: Sequence[Any], trainable_variables: Any = None) -> Any:
        """Apply gradients, reduced by the placements of their variables."""
        optimizer: Any = self
        if trainable_variables is not None:
            trainable_variables = list(trainable_variables)
        self._rdmatensor_remember(trainable_variables or optimizer._trainable_variables)
        if not isinstance(self, Distributed) and optimizer._rdmatensor_outermost:
            grads = reduce(current(), grads, self._rdmatensor_variables, list)
        return super().apply(grads, trainable_variables)  # type: ignore[misc]

    def _backend_apply_gradients(self, grads: Sequence[Any], variables: Sequence[Any]) -> Any:
        self._rdmatensor_remember(variables)  # without those that have no gradients
        return super()._backend_apply_gradients(grads, variables)  # type: ignore[misc]

    def _rdmatensor_remember(self, variables: Sequence[Any]) -> None:
        object.__setattr__(
            self, "_rdmatensor_variables", list(variables)
        )  # which Keras would track

    def _rdmatensor_reduce(self, grads: Sequence[Any], variables: Sequence[Any]) -> list[Any]:
        others = super()._rdmatensor_reduce  # type: ignore[misc]
        return reduce(
            current(),
            grads,
            variables,
            lambda left: others(left, variables),
            keep_rows=moves_all_rows(getattr(self, "inner_optimizer", self)),
        )

    def _clip_gradients(self, grads: Sequence[Any]) -> Any:
        optimizer: Any = self
        if optimizer.gradient_accumulation_steps is not None and isinstance(self, Distributed):
            grads = self._rdmatensor_reduce(grads, self._rdmatensor_variables)
        return clipped(optimizer, list(grads), self._rdmatensor_variables)

    def check_finite(self, grads: Sequence[Any]) -> Any:
        """Return whether all gradients are finite, also the rows of other owners."""
        run = current()
        values = [_values(each) for each in grads if each is not None]
        finite = super().check_finite(values)  # type: ignore[misc]
        if not any(is_owned(each) for each in self._rdmatensor_variables):
            return finite
        # An owner sees infinities in its rows alone.
        flag = operations.all_reduce(run, tf.cast(finite, tf.int32), "min", "finite gradients")
        return tf.cast(flag, tf.bool)

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> Any:
        """Update rows in C++ if there is a rule for it; else do as Keras does."""
        placement = placement_of(variable)
        rule = None
        if isinstance(gradient, tf.IndexedSlices) and placement is not None and placement.row_wise:
            rule = rule_of(self, variable)
        if rule is None or placement is None:
            return super().update_step(gradient, variable, learning_rate)  # type: ignore[misc]
        return update_rows(rule, placement, variable, gradient, learning_rate)


def update_by_rows(optimizer: Any) -> None:
    """Let an optimizer, and the one inside it if it scales the loss, keep to the placements of tables."""
    inner = getattr(optimizer, "inner_optimizer", None)
    for each in (optimizer, inner):
        if each is not None:
            mixin.add(each, RowWise, _rdmatensor_outermost=each is optimizer)


class Rule(NamedTuple):
    """A rule of updates that the kernel knows, a variable's slots, and the rates by the learning rate."""

    name: str
    slots: Sequence[Any]
    rates: Callable[[Any], Sequence[Any]]


def _kind_of(optimizer: Any) -> type | None:
    kind = next((each for each in type(optimizer).__mro__ if each in _KNOWN), None)
    if kind is None or type(optimizer).__name__ != kind.__name__:
        return None  # a class of the user's may update otherwise
    return kind


def moves_all_rows(optimizer: Any) -> bool:
    """Return whether this optimizer changes rows whose gradients are zero, unless it updates by rows."""
    kind = _kind_of(optimizer)
    if kind is keras.optimizers.SGD:
        return bool(optimizer.momentum != 0)
    return kind in (keras.optimizers.Adam, keras.optimizers.AdamW)


def rule_of(optimizer: Any, variable: Any) -> Rule | None:
    """Return how this optimizer would update rows; None if the kernel does not know how."""
    kind = _kind_of(optimizer)
    if kind is None:
        return None
    index = optimizer._get_variable_index(variable)
    if kind is keras.optimizers.SGD:
        momentum = optimizer.momentum
        if momentum == 0:
            return Rule("sgd", [], lambda rate: (rate, 0, 0, 0))
        name = "nesterov" if optimizer.nesterov else "momentum"
        return Rule(name, [optimizer.momentums[index]], lambda rate: (rate, momentum, 0, 0))
    if kind is keras.optimizers.Adagrad:
        epsilon = optimizer.epsilon
        return Rule("adagrad", [optimizer._accumulators[index]], lambda rate: (rate, 0, 0, epsilon))
    slots = [optimizer._momentums[index], optimizer._velocities[index]]
    if optimizer.amsgrad:
        slots.append(optimizer._velocity_hats[index])

    def rates(rate: Any) -> Sequence[Any]:
        a, b = float(optimizer.beta_1), float(optimizer.beta_2)
        step = tf.cast(optimizer.iterations + 1, tf.float32)
        return rate * tf.sqrt(1 - tf.pow(b, step)) / (1 - tf.pow(a, step)), a, b, optimizer.epsilon

    return Rule("amsgrad" if optimizer.amsgrad else "adam", slots, rates)


_KNOWN = (
    keras.optimizers.SGD,
    keras.optimizers.Adagrad,
    keras.optimizers.AdamW,
    keras.optimizers.Adam,
)


def update_rows(rule: Rule, placement: Placement, variable: Any, gradient: Any, rate: Any) -> Any:
    """Update the rows of a variable that the gradient (IndexedSlices) names, and their slots."""
    rates = rule.rates(tf.cast(rate, tf.float32))
    return operations.library().rdmatensor_update_rows(
        _handle(variable),
        [_handle(each) for each in rule.slots],
        tf.cast(gradient.indices, tf.int32),
        tf.cast(gradient.values, tf.float32),
        tf.stack([tf.cast(each, tf.float32) for each in rates]),
        rule=rule.name,
        threads=placement.threads,
    )


def _handle(variable: Any) -> Any:
    return (variable if isinstance(variable, tf.Variable) else variable.value).handle


def clipped(optimizer: Any, grads: list[Any], variables: Sequence[Any]) -> list[Any]:
    """Clip gradients as the whole model's are. Keras would take the rows that it sees for the whole."""
    limit = optimizer.clipnorm or optimizer.global_clipnorm
    if not limit:
        value = optimizer.clipvalue
        return (
            [_by(each, lambda x: tf.clip_by_value(x, -value, value)) for each in grads]
            if (value and value > 0)
            else grads
        )
    squares = [
        tf.zeros([])
        if each is None
        else tf.reduce_sum(tf.square(tf.cast(_values(each), tf.float32)))
        for each in grads
    ]
    owned = [i for i, each in enumerate(variables) if is_owned(each)]
    if owned:
        run = current()
        sums = operations.all_reduce(
            run, tf.stack([squares[i] for i in owned]), "sum", "norms of rows"
        )
        for i, each in zip(owned, tf.unstack(sums, len(owned)), strict=True):
            squares[i] = each
    norms = [tf.sqrt(each) for each in squares]
    if not optimizer.clipnorm:
        norms = [tf.sqrt(tf.add_n(squares))] * len(grads)
    return [
        _by(each, lambda x, norm=norm: x * tf.cast(limit / tf.maximum(norm, limit), x.dtype))
        for each, norm in zip(grads, norms, strict=True)
    ]


def _values(gradient: Any) -> Any:
    return gradient.values if isinstance(gradient, tf.IndexedSlices) else gradient


def _by(gradient: Any, change: Any) -> Any:
    if gradient is None:
        return None
    if isinstance(gradient, tf.IndexedSlices):
        return tf.IndexedSlices(change(gradient.values), gradient.indices, gradient.dense_shape)
    return change(gradient)
