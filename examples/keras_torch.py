# SPDX-License-Identifier: Apache-2.0
"""Train a Keras model on PyTorch in several processes: rdmatensor launch -n 2 examples/keras_torch.py"""

from __future__ import annotations

import os

os.environ["KERAS_BACKEND"] = "torch"

import keras
import numpy as np

import rdmatensor.train as rt

run = rt.init()
x = np.random.default_rng(0).normal(size=(4096, 32)).astype("float32")
y = np.tanh(x.sum(-1, keepdims=True))
model = keras.Sequential(
    [keras.Input((32,)), keras.layers.Dense(64, activation="relu"), keras.layers.Dense(1)]
)
model.compile(rt.distribute(keras.optimizers.Adam(1e-3)), loss="mse", metrics=["mae"])
model.fit(*rt.shard((x, y)), batch_size=64, epochs=3, callbacks=rt.callbacks())

weights = np.concatenate([np.ravel(each) for each in model.get_weights()])
if run.group is not None:
    rows = run.group.all_gather(weights[None])
    assert (rows == rows[0]).all()
if run.rank == 0:
    print(f"all processes have one model, of {weights.size} weights")
