# SPDX-License-Identifier: Apache-2.0
"""Tell whether a metric only adds to its states, so that the states of several processes can be added."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np

from ..backend import mixin

if (
    keras.config.backend() == "tensorflow"
):  # elsewhere, metrics of the user's own classes are not looked at
    import tensorflow as tf

# The attribute of a metric that has the numbers of the variables it adds to, or None.
_ADDED = "_rdmatensor_added"


class _Watched:
    """The class that lies in front of a metric's until it is updated for the first time."""

    def update_state(self, *arguments: Any, **named: Any) -> Any:
        update = super().update_state  # type: ignore[misc]
        try:
            found = _variables_added(self, update, arguments, named)
        except Exception:  # it may do anything, such as what only eager code can
            found = None
        if found != frozenset():  # nothing is written where Keras only looks for shapes
            object.__setattr__(self, _ADDED, found)
            mixin.remove(self)
        return update(*arguments, **named)


def watch_metric(metric: Any) -> None:
    """Look at the next update of a metric of the user's own class, if none was looked at so far."""
    if not _is_keras(metric) and not hasattr(metric, _ADDED):
        mixin.add(metric, _Watched)


def added_by(metric: Any) -> frozenset[int] | None:
    """Return the numbers of the metric's variables that are sums over examples; None if some states are not.

    Keras's own metrics keep sums and counts only. Others were looked at while they were traced.
    """
    if _is_keras(metric):
        return frozenset(range(len(metric.variables)))
    found: frozenset[int] | None = getattr(metric, _ADDED, None)
    return found


def _is_keras(metric: Any) -> bool:
    return type(metric).__module__.split(".")[0] == "keras"


def _variables_added(
    metric: Any, update: Callable[..., Any], arguments: Any, named: Any
) -> frozenset[int] | None:
    flat = tf.nest.flatten((arguments, named))
    tensors = [i for i, each in enumerate(flat) if isinstance(each, (tf.Tensor, np.ndarray))]

    def updated(*values: Any) -> None:
        given = list(flat)
        for i, value in zip(tensors, values, strict=True):
            given[i] = value
        again, by_name = tf.nest.pack_sequence_as((arguments, named), given)
        update(*again, **by_name)

    specs = [tf.TensorSpec(flat[i].shape, flat[i].dtype) for i in tensors]
    writes = _Writes(metric, updated, specs)
    if any(each is None for each in writes.added):
        return None
    begins = _Writes(metric, metric.reset_state, [])
    added = frozenset(i for i, each in enumerate(writes.added) if each)
    return added if all(begins.zero[i] for i in added) else None


class _Writes:
    """The writes of a metric's method to the metric's variables. The method is traced, and not run."""

    def __init__(self, metric: Any, method: Callable[..., Any], specs: list[Any]) -> None:
        with tf.init_scope():
            traced = tf.function(method, autograph=False).get_concrete_function(*specs)
        places = {id(outside): inside for outside, inside in traced.graph.captures}
        self._handles = [places.get(id(each.handle)) for each in metric.variables]
        self._operations = traced.graph.get_operations()
        self.added = [self._only_added(handle) for handle in self._handles]
        """Whether the method adds to each variable: False if it does not write it, None if it does more."""
        self.zero = [self._set_to_zero(handle) for handle in self._handles]
        """Whether the method sets each variable to zero."""

    def _uses(self, handle: Any) -> list[Any]:
        return [each for each in self._operations if any(of is handle for of in each.inputs)]

    def _only_added(self, handle: Any) -> bool | None:
        writes = False
        for operation in self._uses(handle) if handle is not None else []:
            if operation.type == "ReadVariableOp":
                continue
            writes = True
            if operation.type in ("AssignAddVariableOp", "AssignSubVariableOp"):
                more = [operation.inputs[1]]
            elif operation.type == "ResourceScatterAdd":
                more = list(operation.inputs)[1:]
            elif operation.type == "AssignVariableOp":
                terms = _terms(operation.inputs[1])
                more = [each for each in terms if not _reads(each.op, handle)]
                if len(more) != len(terms) - 1:
                    return None
            else:
                return None
            if any(self._depends(each) for each in more):
                return None
        return writes

    def _depends(self, tensor: Any) -> bool:
        """Return whether a value depends on one of the variables."""
        waiting, seen = [tensor.op], set()
        while waiting:
            operation = waiting.pop()
            if operation.name in seen:
                continue
            seen.add(operation.name)
            if any(of is handle for of in operation.inputs for handle in self._handles):
                return True
            waiting += [each.op for each in operation.inputs]
        return False

    def _set_to_zero(self, handle: Any) -> bool:
        writes = [
            each for each in self._uses(handle) if handle is not None and "Assign" in each.type
        ]
        values = [tf.get_static_value(each.inputs[1]) for each in writes]
        return bool(values) and values[-1] is not None and not np.any(values[-1])


def _reads(operation: Any, handle: Any) -> bool:
    return operation.type == "ReadVariableOp" and operation.inputs[0] is handle


def _terms(tensor: Any) -> list[Any]:
    """Return the values whose sum a value is."""
    operation = tensor.op
    if operation.type in ("Identity", "Cast", "StopGradient"):
        return _terms(operation.inputs[0])
    if operation.type in ("Add", "AddV2", "AddN"):
        return [term for each in operation.inputs for term in _terms(each)]
    if operation.type == "Sub":
        return [*_terms(operation.inputs[0]), operation.inputs[1]]
    return [tensor]
