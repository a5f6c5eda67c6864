# SPDX-License-Identifier: Apache-2.0
"""Ray Train starts the workers of Keras 3's model.fit, and starts all of them again if one dies.

    python examples/ray_keras.py [WORKERS]

Training goes on after the last whole epoch then. Ray's machines need rdmatensor and TensorFlow.
"""

from __future__ import annotations

import os
import sys
import tempfile
from typing import Any

import ray.train
from ray.train.tensorflow import TensorflowTrainer

import rdmatensor.ray

BATCH, EPOCHS = 64, 5


def train(config: dict[str, Any]) -> None:
    """Runs in each worker: learns to add eight numbers."""
    import keras
    import numpy as np

    import rdmatensor.train as rt

    class Report(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            place = f"rank {rt.rank()} of {rt.size()}, process {os.getpid()}"
            print(f"{place}: epoch {epoch + 1}, loss {logs['loss']:.6f}", flush=True)
            ray.train.report({"loss": logs["loss"], "epoch": epoch + 1})

    run = rt.init()
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(16), keras.layers.Dense(1)])
    model.compile(rt.distribute(keras.optimizers.SGD(0.002)), loss="mse")
    x = np.random.default_rng(1).normal(size=(2048, 8)).astype("float32")
    model.fit(
        *rt.shard((x, x.sum(axis=1, keepdims=True))),
        batch_size=BATCH // run.size,
        epochs=EPOCHS,
        verbose=0,
        callbacks=[*rt.callbacks(backup=config["backup"]), Report()],
    )
    rt.shutdown()


if __name__ == "__main__":
    workers = int(sys.argv[1]) if len(sys.argv) > 1 else 2
    with tempfile.TemporaryDirectory() as folder:  # on several machines: one that all of them have
        TensorflowTrainer(
            train,
            train_loop_config={"backup": f"{folder}/backup"},
            tensorflow_config=rdmatensor.ray.RayConfig(),
            scaling_config=ray.train.ScalingConfig(num_workers=workers),
            run_config=ray.train.RunConfig(
                storage_path=f"{folder}/results",
                failure_config=ray.train.FailureConfig(max_failures=1),
            ),
        ).fit()
