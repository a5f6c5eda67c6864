# SPDX-License-Identifier: Apache-2.0
"""Let the rows of a Keras Embedding live in several processes."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from ...errors import UsageError
from ..backend import mixin
from ..keras.saving import Whole
from .placement import Placement, lookup, place


class OwnedRows(Whole):
    """The class that `put_rows` puts in front of an Embedding's. All processes call it together."""

    _rdmatensor_placement: Placement

    def call(self, inputs: Any) -> Any:
        """Look up rows of all owners."""
        layer: Any = self
        ids = tf.convert_to_tensor(inputs)
        if ids.dtype not in (tf.int32, tf.int64):
            ids = tf.cast(ids, tf.int32)
        return lookup(
            self._rdmatensor_placement, layer._embeddings, ids, tf.as_dtype(layer.compute_dtype)
        )

    @property
    def embeddings(self) -> Any:
        """Raise UsageError: no process has all rows."""
        raise UsageError(
            f"the rows of {self._rdmatensor_placement.name} are in several processes: to use all of it, "
            'give it to parallelize(ways={...: "gather"})'
        )

    def enable_lora(self, *_: Any, **__: Any) -> None:
        """Raise UsageError: LoRA needs the whole table."""
        raise UsageError(
            f"the rows of {self._rdmatensor_placement.name} are in several processes: enable LoRA before "
            "parallelize()"
        )

    @property
    def _rdmatensor_saved(self) -> list[Any]:
        layer: Any = self
        return [layer._embeddings]


def put_rows(layer: Any, placement: Placement) -> None:
    """Place the table of a built Embedding. All processes call it; rank 0's values count."""
    if placement.owned:
        old = layer._embeddings
        rows = placement.received(old.numpy() if placement.run.rank == 0 else None)
        layer._tracker.unlock()
        layer._untrack_variable(old)
        layer._embeddings = layer.add_weight(
            shape=rows.shape,
            initializer=lambda *_, **__: keras.ops.convert_to_tensor(rows),
            name="embeddings",
            trainable=old.trainable,
        )
        layer._tracker.lock()
        mixin.add(layer, OwnedRows, _rdmatensor_placement=placement)
    place(layer._embeddings, placement)
