# SPDX-License-Identifier: Apache-2.0
"""Cases of cases.py in which parallelize() chooses or refuses, and models with owners are saved, or die."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import rdmatensor.train as rt
from rdmatensor.errors import UsageError
from rdmatensor.train.backend.tensorflow import operations
from train import table_cases


def refused() -> Any:
    """What parallelize() says to what it cannot do, by name."""
    rt.init()
    embedding, ids = keras.layers.Embedding, keras.Input((3,), dtype="int32")

    def owned(layer: Any, more: Any = None, **named: Any) -> Any:
        rows = layer(ids)
        return rt.parallelize(
            keras.Model(ids, more(rows) if more else rows), **{"ways": "owners", **named}
        )

    def low_rank() -> Any:
        layer = embedding(9, 4, name="t")
        layer.build()
        layer.enable_lora(2)
        return owned(layer)

    def tied() -> Any:
        layer = embedding(9, 4, name="t")
        return owned(layer, lambda rows: keras.ops.tensordot(rows, layer.embeddings, [[2], [1]]))

    def used_later() -> Any:
        layer = embedding(9, 4, name="t")
        owned(layer)
        return layer.embeddings

    def compiled() -> Any:
        model = keras.Model(ids, embedding(9, 4, name="t")(ids))
        model.compile("adam")
        model.optimizer.build(model.trainable_variables)
        return rt.parallelize(model, ways="owners")

    def outer() -> Any:
        layer = embedding(9, 4, name="t")
        rows = owned(layer)(ids)
        model = keras.Model(ids, rows)
        model.compile(rt.distribute("sgd"), loss="mse")
        model.optimizer.build(model.trainable_variables)

    def taped() -> Any:
        model = owned(embedding(9, 4, name="t"))
        with rt.GradientTape() as tape:
            loss = tf.reduce_sum(model(np.zeros((2, 3), "i")))
        tape.gradient(loss, model.trainable_variables)

    class Own(embedding):  # type: ignore[misc, valid-type]
        def call(self, inputs: Any) -> Any:
            return super().call(inputs) * 2

    attempts = {
        "constraint": lambda: owned(embedding(9, 4, embeddings_constraint="non_neg", name="t")),
        "regularizer": lambda: owned(embedding(9, 4, embeddings_regularizer="l2", name="t")),
        "LoRA": low_rank,
        "tied": tied,
        "used later": used_later,
        "float16": lambda: owned(embedding(9, 4, dtype="float16", name="t")),
        "float64 is gathered": lambda: owned(
            embedding(9, 4, dtype="float64", name="t"), ways="dense"
        ),
        "own call": lambda: owned(Own(9, 4, name="t")),
        "no sample": lambda: owned(embedding(9, 4, name="t"), ways=None),
        "no batch": lambda: owned(embedding(9, 4, name="t"), ways=None, sample=[]),
        "no such layer": lambda: owned(embedding(9, 4, name="t"), ways={"x": "owners"}),
        "no such way": lambda: owned(embedding(9, 4, name="t"), ways="magic"),
        "twice": lambda: rt.parallelize(owned(embedding(9, 4, name="t")), ways="owners"),
        "not built": lambda: rt.parallelize(keras.Sequential([embedding(9, 4)]), ways="owners"),
        "compiled": compiled,
        "another model": outer,
        "tape": taped,
        "explain": lambda: rt.explain(keras.Sequential()),
        "export": lambda: owned(embedding(9, 4, name="t")).export("nowhere"),
        "sharded": lambda: owned(embedding(9, 4, name="t")).compile(
            rt.distribute("sgd", rt.sync.Sharded())
        ),
        "local SGD": lambda: owned(embedding(9, 4, name="t")).compile(
            rt.distribute("sgd", rt.sync.LocalSGD(period=2))
        ),
    }
    found = {}
    for name, attempt in attempts.items():
        try:
            attempt()  # type: ignore[no-untyped-call]
            found[name] = "no error"
        except UsageError as error:
            found[name] = str(error)
    return found


def chosen(page: str) -> Any:
    """What is chosen for a table that is used as a whole, one of which few rows are used, and others."""
    run = rt.init()
    ids = keras.Input((64,), dtype="int32")
    small = keras.layers.Embedding(16, 4, name="small")
    large = keras.layers.Embedding(60_000, 64, name="large")
    frozen = keras.layers.Embedding(100, 4, name="frozen", trainable=False)
    limited = keras.layers.Embedding(50, 4, embeddings_constraint="non_neg", name="limited")
    parts = [small(ids % 16), large(ids), frozen(ids % 100), limited(ids % 50)]
    outputs = keras.layers.Dense(1)(keras.ops.concatenate(parts, -1))
    model = keras.Model(ids, outputs)
    batch = np.random.default_rng(run.rank).integers(0, 60_000, (32, 64))
    targets = np.zeros((32, 64, 1), "f")
    model = rt.parallelize(model, sample=tf.data.Dataset.from_tensors((batch, targets)).repeat(3))
    explanation = rt.explain(model)
    model.compile("adam", loss="mse")
    losses = model.fit(
        batch, targets, batch_size=16, epochs=2, callbacks=rt.callbacks(), verbose=0
    ).history["loss"]
    if run.rank == 0:
        explanation.write(page)
    tables = {
        each.name: {
            "way": each.way,
            "why": each.why,
            "share": each.use.share if each.use else None,
            "seconds": each.seconds,
            "partitions": each.partitions,
        }
        for each in explanation.tables
    }
    return {"tables": tables, "text": str(explanation), "losses": losses}


def tables_resumed(backup: str, epochs: int, save: str = "") -> Any:
    """Trains tables with owners up to an epoch, after that of the backup."""
    run = rt.init()
    made = rt.parallelize(table_cases._model("several"), ways="owners")
    made.compile(keras.optimizers.Adam(0.01), loss="mse")
    keeps = rt.on_rank_0(keras.callbacks.ModelCheckpoint(f"{backup}.keras"))
    history = made.fit(
        *rt.shard(table_cases._words("many")),
        batch_size=table_cases.BATCH // run.size,
        shuffle=False,
        epochs=epochs,
        callbacks=[*rt.callbacks(backup=backup), keeps],
        verbose=0,
    )
    if save:
        made.save(save)
        made.load_weights(Path(backup, f"kept_{epochs}.weights.h5"))
    weights = [np.ravel(each).tolist() for each in table_cases._whole(made)]
    try:
        made.load_weights("nowhere.weights.h5")
        says = "no error"
    except Exception as error:
        says = str(error)
    return {"losses": history.history["loss"], "weights": weights, "says": says}


def dying(phase: str) -> Any:
    """Trains until rank 1 is killed, which stops where it would begin `phase` of its third step, or the third
    of the measurements that parallelize() makes."""
    run = rt.init(timeout=60)
    begin, met = operations.start, []
    measures = phase == "a measurement"
    name = phase if measures else f"{phase} of first"

    def start(handle: Any, kind: Any, tensors: Any, detail: str, **more: Any) -> Any:
        if detail.startswith(name):
            met.append(detail)
            if run.rank == 1 and len(met) == 3:
                print("there", flush=True)
                sys.stdin.read()
                os._exit(1)
        return begin(handle, kind, tensors, detail, **more)

    operations.start = start
    model, data = table_cases._model("plain"), table_cases._words("many")
    how: dict[str, Any] = {"sample": [data]} if measures else {"ways": "owners"}
    try:
        made = rt.parallelize(model, **how)
        made.compile("adam", loss="mse", run_eagerly=True)
        made.fit(*data, batch_size=4, callbacks=rt.callbacks(), verbose=0)
    except tf.errors.OpError as error:
        return {"kind": type(error).__name__, "says": str(error)}
    return "no error"
