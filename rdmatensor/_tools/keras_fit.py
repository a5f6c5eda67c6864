# SPDX-License-Identifier: Apache-2.0
"""Repair Keras 3's fit and evaluate under MultiWorkerMirroredStrategy, in this process."""

from __future__ import annotations

from types import ModuleType
from typing import Any

from ..errors import Unsupported

_NEEDED = ("TensorFlowTrainer", "reduce_per_replica", "_collective_all_reduce_multi_worker")


def repair() -> None:
    """Do what rdmatensor.tensorflow.repair_keras does."""
    import keras

    if not keras.__version__.startswith("3."):
        raise Unsupported(
            f"this is Keras {keras.__version__}: only Keras 3 needs the repair", "UNSUPPORTED"
        )
    from keras.src.backend.tensorflow import trainer

    missing = [name for name in _NEEDED if not hasattr(trainer, name)]
    if missing or not hasattr(trainer.TensorFlowTrainer, "_maybe_symbolic_build"):
        raise Unsupported(
            f"Keras {keras.__version__} is built otherwise ({', '.join(missing) or 'its trainer'}): use "
            "rdmatensor.train, or a custom loop",
            "UNSUPPORTED",
        )
    if not hasattr(trainer.reduce_per_replica, "_rdmatensor"):
        _repair_means(trainer)
        _repair_first_batch(trainer)


def _repair_means(trainer: ModuleType) -> None:
    """Let Keras take the mean over replicas where it asks for a mean over the rows of a loss, which has
    none.
    """
    import tensorflow as tf

    stock = trainer.reduce_per_replica

    def reduce_per_replica(values: Any, strategy: Any, reduction: str) -> Any:
        is_mean = reduction in ("auto", "mean")
        if not is_mean or not trainer._collective_all_reduce_multi_worker(strategy):
            return stock(values, strategy, reduction)
        return tf.nest.map_structure(lambda each: strategy.reduce("MEAN", each, axis=None), values)

    reduce_per_replica._rdmatensor = True  # type: ignore[attr-defined]
    trainer.reduce_per_replica = reduce_per_replica  # type: ignore[attr-defined]


def _repair_first_batch(trainer: ModuleType) -> None:
    """Let Keras build the model from the worker's own first batch.

    Stock Keras takes the mean of the workers' first batches, which may differ in length.
    """
    import tensorflow as tf

    stock = trainer.TensorFlowTrainer._maybe_symbolic_build

    def maybe_symbolic_build(self: Any, iterator: Any = None, data_batch: Any = None) -> Any:
        strategy = self._distribute_strategy
        if strategy is None or not trainer._collective_all_reduce_multi_worker(strategy):
            return stock(self, iterator, data_batch)
        if iterator is not None:
            for _, _, batches in iterator:
                data_batch = tf.nest.map_structure(
                    lambda each: strategy.experimental_local_results(each)[0], next(batches)
                )
                break
        return stock(self, None, data_batch)

    trainer.TensorFlowTrainer._maybe_symbolic_build = maybe_symbolic_build
