# SPDX-License-Identifier: Apache-2.0
"""Let optimizers treat strips as parts: their state is cut too, and norms are those of whole gradients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from ...errors import UsageError
from ..backend.names import plain
from ..backend.tensorflow.parts import mark
from ..keras.saving import Whole
from .slices import groups_of, strip_of

# They use a matrix as a whole.
_OF_MATRICES = (keras.optimizers.Adafactor, keras.optimizers.Lamb, keras.optimizers.Muon)


class WithStrips(Whole):
    """The class that lies, in a split model's optimizer, between its own and the one of distribute()."""

    _rdmatensor_variables: Sequence[Any] = ()

    def build(self, variables: Sequence[Any]) -> None:
        """Build the optimizer. Raises UsageError if it needs whole matrices, and some are cut."""
        if isinstance(self, _OF_MATRICES) and groups_of(variables) is not None:
            raise UsageError(
                f"{type(self).__name__} needs whole matrices, and split() has cut some: use an optimizer "
                "that treats each weight by itself, such as Adam"
            )
        super().build(variables)  # type: ignore[misc]

    def add_variable_from_reference(self, reference_variable: Any, *more: Any, **named: Any) -> Any:
        """Add a variable, and mark it as a strip if its reference is one."""
        variable = super().add_variable_from_reference(reference_variable, *more, **named)  # type: ignore[misc]
        strip = strip_of(reference_variable)
        if strip is not None:
            mark(variable, strip)
        return variable

    def _backend_apply_gradients(self, grads: Sequence[Any], variables: Sequence[Any]) -> None:
        object.__setattr__(self, "_rdmatensor_variables", variables)
        super()._backend_apply_gradients(grads, variables)  # type: ignore[misc]

    def _clip_gradients(self, grads: Sequence[Any]) -> Any:
        optimizer: Any = self
        groups = groups_of(self._rdmatensor_variables)
        if groups is None or not (optimizer.clipnorm or optimizer.global_clipnorm):
            return super()._clip_gradients(grads)  # type: ignore[misc]
        strips = [strip_of(each) is not None for each in self._rdmatensor_variables]
        norms = groups.squared_norms(grads, strips, f"gradients of {plain(optimizer.name)}")
        limit = optimizer.clipnorm or optimizer.global_clipnorm
        if optimizer.clipnorm:
            factors = tf.unstack(limit / tf.maximum(tf.sqrt(norms), limit))
        else:
            total = tf.sqrt(tf.reduce_sum(norms))
            factors = [limit / tf.maximum(total, limit)] * len(grads)
        return [
            None if each is None else each * tf.cast(factor, each.dtype)
            for each, factor in zip(grads, factors, strict=True)
        ]
