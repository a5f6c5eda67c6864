# SPDX-License-Identifier: Apache-2.0
"""Cases of cases.py with tables of embeddings."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import tensorflow as tf

import rdmatensor.train as rt
from rdmatensor.train.embeddings.placement import placement_of, reduce

BATCH, STEPS = 16, 4


def _words(kind: str) -> Any:
    """The ids of all processes, and what is to be learned from them."""
    numbers = np.random.default_rng(4)
    count = BATCH * STEPS
    if kind == "one owner":
        ids = 2 * numbers.integers(0, 10, (count, 5))
    elif kind == "none":
        ids = numbers.integers(1, 20, (count, 0))
    else:
        ids = numbers.integers(0, 20, (count, 5)) * (numbers.random((count, 5)) < 0.8)
    return ids, numbers.standard_normal((count, 1)).astype("f")


def _model(kind: str) -> Any:
    keras.utils.set_random_seed(5 + rt.rank())  # what is the same afterwards was made the same
    ids = keras.Input((None,), dtype="int32")
    first = keras.layers.Embedding(20, 4, mask_zero=kind == "masks", name="first")
    if kind == "shared":
        rows = first(ids) + first(keras.ops.flip(ids, 1))
    elif kind == "several":
        rows = first(ids) * keras.layers.Embedding(23, 4, name="second")(ids + 2)
    else:
        rows = first(ids)
    mean = keras.layers.GlobalAveragePooling1D()
    pooled = mean(rows) if kind == "masks" else keras.ops.sum(rows, 1)
    return keras.Model(ids, keras.layers.Dense(1)(pooled))


def tables(each: list[dict[str, Any]]) -> Any:
    """Several models, one after the other."""
    return [table(**arguments) for arguments in each]


def table(
    optimizer: str,
    model: str = "plain",
    data: str = "many",
    ways: Any = "owners",
    row_wise: bool = True,
    plain: bool = False,
    policy: str = "float32",
) -> Any:
    """The weights after training. `plain` is the program without parallelize(), and with dense gradients:
    of rows that repeat, Keras's optimizers would square each by itself, and norms would do so too.
    """
    run = rt.init()
    keras.config.set_dtype_policy(policy)
    made = _model(model)
    keras.config.set_dtype_policy("float32")
    used = eval(optimizer, {"keras": keras})
    if plain:
        apply = used.apply
        used.apply = lambda grads, trainable_variables: apply(
            [tf.convert_to_tensor(each) for each in grads], trainable_variables
        )
    else:
        made = rt.parallelize(made, ways=ways, row_wise=row_wise)
    made.compile(used, loss="mse")
    made.fit(
        *rt.shard(_words(data)),
        batch_size=BATCH // run.size,
        shuffle=False,
        epochs=2,
        callbacks=rt.callbacks(),
        verbose=0,
    )
    return [np.ravel(each).tolist() for each in _whole(made)]


def _whole(model: Any) -> list[Any]:
    found = []
    for variable in model.trainable_variables:
        value, placement = tf.convert_to_tensor(variable), placement_of(variable)
        if placement is not None and placement.owned:
            rows = placement.whole(variable)
            value = tf.zeros([placement.rows, placement.width]) if rows is None else rows
            value = rt.ops.broadcast(value)
        found.append(value)
    return found


def uneven() -> Any:
    """Each process looks up another number of rows, the first none, in eager code and in a function."""
    run = rt.init()
    found = []
    for owners in range(1, run.size + 1):
        layer = keras.layers.Embedding(7, 2, embeddings_initializer="normal")
        model = keras.Sequential([keras.Input((None,), dtype="int64"), layer])
        whole = rt.ops.broadcast(tf.reshape(tf.range(14.0), [7, 2]))
        layer.set_weights([whole])
        rt.parallelize(model, ways="owners", partitions=owners)
        ids = tf.tile(tf.range(run.rank, dtype=tf.int64), [2])
        for how in (_looked_up, tf.function(_looked_up)):
            rows, gradient = how(ids, layer)
            here = tf.convert_to_tensor(gradient).numpy()[:, 0].tolist()
            found.append([rows.numpy()[:, 0].tolist(), here, layer._embeddings.shape[0]])
    return found


def _looked_up(ids: Any, layer: Any) -> Any:
    """Rows, and the mean of the gradients that rank + 1 times each gives."""
    with tf.GradientTape() as tape:
        rows = layer(ids)
        loss = tf.reduce_sum(rows) * (rt.rank() + 1.0)
    gradient = tape.gradient(loss, layer._embeddings.value)
    return rows, reduce(rt.init(), [gradient], [layer._embeddings], list)[0]
