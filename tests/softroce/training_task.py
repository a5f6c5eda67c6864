# SPDX-License-Identifier: Apache-2.0
"""Two processes that train one model over verbs, each with half of a batch: a step of each way. One process
alone would take the same step with the whole batch. See forks.py."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np

import rdmatensor.config
import rdmatensor.train as rt
from softroce.forks import in_forks

# What is imported when it is used is imported before there are forks.
for _of in (rt, rt.sync):
    for _name in _of.__all__:
        getattr(_of, _name)
RANKS = 2
ROWS, FEATURES, HIDDEN = 8, 100, 200
WORDS, WIDTH = 1000, 32


def _dense() -> Any:
    keras.utils.set_random_seed(5)
    hidden = keras.layers.Dense(HIDDEN, activation="tanh")
    return keras.Sequential([keras.Input((FEATURES,)), hidden, keras.layers.Dense(4)])


def _words() -> Any:
    keras.utils.set_random_seed(6)
    table = keras.layers.Embedding(WORDS, WIDTH)
    return keras.Sequential([keras.Input((3,), dtype="int32"), table, keras.layers.Flatten()])


def _step(model: Any, optimizer: Any, x: Any, y: Any) -> Any:
    """The model after a step."""
    model.compile(optimizer, loss="mse", run_eagerly=True)
    model.train_on_batch(x, y)
    return model


def _numbers(model: Any) -> list[list[float]]:
    return [np.ravel(each).astype(float).tolist() for each in model.trainable_variables]


def _train(index: int, root: str) -> dict[str, Any]:
    rdmatensor.config.set("TRANSPORTS", "verbs")
    run = rt.init(rank=index, size=RANKS, root=root, timeout=300)
    assert run.device is not None
    numbers = np.random.default_rng(7)
    x = numbers.standard_normal((ROWS, FEATURES)).astype("f")
    y = numbers.standard_normal((ROWS, 4)).astype("f")
    ids = numbers.integers(0, WORDS, (ROWS, 3)).astype("int32")
    rows = numbers.standard_normal((ROWS, 3 * WIDTH)).astype("f")
    mine = slice(index * ROWS // RANKS, (index + 1) * ROWS // RANKS)

    def sgd() -> Any:
        return keras.optimizers.SGD(0.5, momentum=0.9)

    found: dict[str, Any] = {}
    alone = _numbers(_step(_dense(), sgd(), x, y))
    for name, sync in (("all_reduce", rt.sync.AllReduce()), ("sharded", rt.sync.Sharded())):
        before = run.device.stats()
        got = _numbers(_step(_dense(), rt.distribute(sgd(), sync), x[mine], y[mine]))
        after = run.device.stats()
        carried = sum(_carried(after)) - sum(_carried(before))
        found[name] = {"got": got, "right": alone, "carried": carried}
    whole = np.asarray(_step(_words(), keras.optimizers.SGD(50.0), ids, rows).variables[0])
    before = run.device.stats()
    model = rt.parallelize(_words(), ways="owners", partitions=RANKS)
    got = _numbers(_step(model, keras.optimizers.SGD(50.0), ids[mine], rows[mine]))
    carried = sum(_carried(run.device.stats())) - sum(_carried(before))
    right = [np.ravel(whole[index::RANKS]).astype(float).tolist()]
    found["owners"] = {"got": got, "right": right, "carried": carried}
    rt.ops.barrier()
    return {"steps": found, "transports": {k: v.text for k, v in run.device.transports.items()}}


def _carried(stats: Any) -> tuple[int, ...]:
    """The bytes that this process wrote and read at the other one."""
    return stats.write_bytes, stats.read_bytes, stats.notify_bytes_sent


def run(address: str, port: int) -> list[dict[str, Any]]:
    """What came out at each rank. Rank 0 listens at `address` and `port`."""
    return in_forks(lambda index: _train(index, f"{address}:{port}"), RANKS)
