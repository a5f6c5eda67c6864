# SPDX-License-Identifier: Apache-2.0
"""Train by fit() and hvd.elastic while processes are killed: `keras_elastic.py FOLDER RANK:EPOCH...`.

The process to which the launcher has given a RANK kills itself in this EPOCH, once. Each one saves what it
has trained.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

import numpy as np

EPOCHS, BATCHES, ROWS = 4, 3, 4


def rows() -> tuple[Any, Any]:
    """The inputs and the labels of all batches."""
    random = np.random.default_rng(7)
    shape = BATCHES * ROWS
    return random.normal(size=(shape, 5)).astype("f"), random.normal(size=(shape, 1)).astype("f")


def model(weight: float = 0.5) -> Any:
    import keras

    layer = keras.layers.Dense(1, kernel_initializer=keras.initializers.Constant(weight))
    return keras.Sequential([keras.Input((5,)), layer])


def optimizer() -> Any:
    import keras

    return keras.optimizers.Adam(0.05)


def main(folder: Path, deaths: list[str]) -> None:
    import keras

    import rdmatensor.horovod.tensorflow.keras as hvd

    hvd.init()
    me, size = hvd.rank(), hvd.size()
    # Only the first process of rank 0 has the weights that count.
    begun = folder / f"{me} has begun"
    trained = model(0.5 if me == 0 and not begun.exists() else -3.0)
    begun.touch()
    trained.compile(hvd.DistributedOptimizer(optimizer()), loss="mse")
    state = hvd.elastic.KerasState(trained, batch=0, epoch=0)

    class Die(keras.callbacks.Callback):
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            mark = folder / f"{me}:{state.epoch} is dead"
            if batch == 1 and f"{me}:{state.epoch}" in deaths and not mark.exists():
                mark.touch()
                os.kill(os.getpid(), signal.SIGKILL)

    callbacks = [
        Die(),
        hvd.elastic.UpdateBatchStateCallback(state),
        hvd.elastic.UpdateEpochStateCallback(state),
        hvd.elastic.CommitStateCallback(state, batches_per_commit=BATCHES),
    ]
    inputs, labels = (each[me::size] for each in rows())

    @hvd.elastic.run
    def train(state: Any) -> None:
        # What a batch changes is undone if it was not committed, so each epoch is trained as a whole.
        state.model.fit(
            inputs,
            labels,
            batch_size=ROWS // size,
            epochs=EPOCHS - state.epoch,
            shuffle=False,
            callbacks=callbacks,
            verbose=0,
        )

    train(state)
    np.savez(folder / f"{me}.npz", *trained.get_weights(), epoch=state.epoch)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
