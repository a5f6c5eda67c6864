# SPDX-License-Identifier: Apache-2.0
"""Cases of cases.py in which processes divide their data."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import scipy.sparse
import tensorflow as tf

import rdmatensor.train as rt

Dataset = tf.data.Dataset
_SLEEPY = tf.data.Options()
_SLEEPY.deterministic = False


class _Numbers(keras.utils.PyDataset):  # type: ignore[misc]
    """Batches of numbers, in an order that changes with each epoch."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self._numbers = np.arange(2 * count)

    def __len__(self) -> int:
        return len(self._numbers) // 2

    def __getitem__(self, index: int) -> Any:
        if index >= len(self):
            raise IndexError(index)
        return self._numbers[2 * index : 2 * index + 2]

    def on_epoch_end(self) -> None:
        np.random.shuffle(self._numbers)


def _attempt(make: Callable[[], Any], act: Callable[[Any], Any] = lambda made: made) -> Any:
    """What `make` returns, after `act`, as lists; or the error."""
    try:
        data = act(make())
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    if isinstance(data, Dataset):
        data = [each.numpy() for each in data]
    return tf.nest.map_structure(_plain, data)


def _plain(each: Any) -> Any:
    if each is None or isinstance(each, str):
        return each
    if isinstance(each, tf.SparseTensor):
        each = tf.sparse.to_dense(each)
    if isinstance(each, tf.RaggedTensor):
        return each.to_list()
    each = each.toarray() if hasattr(each, "toarray") else np.asarray(each)
    return each.astype(str).tolist() if each.dtype.kind in "SO" else each.tolist()


def shards_of_all() -> Any:
    return [_datasets(), *_arrays()]


def _datasets() -> Any:
    """The elements of this process, or why it gets none, for datasets in many orders."""
    run = rt.init()
    numbers = Dataset.range(8)
    own = np.random.default_rng(run.rank).permutation(8)
    makers: dict[str, Callable[[], Any]] = {
        "plain": lambda: numbers,
        "seeded": lambda: numbers.shuffle(8, seed=3).repeat(2),
        "loaded": lambda: Dataset.from_tensor_slices(np.arange(8)).batch(2).unbatch(),
        "interleaved": lambda: numbers.interleave(
            Dataset.from_tensors, num_parallel_calls=2, cycle_length=2
        ),
        "generated": lambda: Dataset.from_generator(
            lambda: iter(range(9)), output_signature=tf.TensorSpec([], tf.int64)
        ),
        "drawn": lambda: Dataset.sample_from_datasets([numbers.repeat(), numbers.repeat()], seed=1).take(8),
        "shuffled": lambda: numbers.shuffle(8).batch(2),
        "in front of a cache": lambda: numbers.shuffle(8).cache().prefetch(2),
        "own seed": lambda: numbers.shuffle(8, seed=run.rank + 1),
        "own rows": lambda: Dataset.from_tensor_slices(own),
        "own files": lambda: Dataset.from_tensor_slices([f"/{run.rank}/{i}" for i in own]),
        "listed": lambda: Dataset.list_files(f"{__file__[:-3]}*"),
        "shuffled inside": lambda: numbers.interleave(lambda i: Dataset.range(i).shuffle(8)),
        "sloppy": lambda: numbers.map(lambda i: i, num_parallel_calls=2, deterministic=False),
        "sloppy files": lambda: numbers.interleave(
            Dataset.from_tensors, num_parallel_calls=2, deterministic=False
        ),
        "sloppy at the end": lambda: numbers.with_options(_SLEEPY),
        "drawn without a seed": lambda: Dataset.sample_from_datasets([numbers, numbers]),
        "dropped": lambda: numbers.filter(lambda _: tf.random.uniform([]) < 0.5),
        "few": lambda: Dataset.range(1),
    }  # fmt: skip
    return {name: _attempt(make, rt.shard) for name, make in makers.items()}


def _arrays() -> Any:
    """The same for what fit() takes besides datasets. Rows are 0 to 8."""
    run = rt.init()
    rows = np.arange(9)
    own = np.random.default_rng(run.rank).permutation(9)
    table = scipy.sparse.csr_matrix(np.diag(rows))
    loader = type("DataLoader", (), {"__module__": "torch.utils.data.dataloader"})
    shuffles = _Numbers(9)
    batches = rt.shard(shuffles)
    epochs = [[batches[i].tolist() for i in range(len(batches))]]
    for _ in range(2):
        batches.on_epoch_end()
        epochs.append([batches[i].tolist() for i in range(len(batches))])
    found = {
        "array": lambda: rt.shard(rows),
        "all": lambda: rt.shard(rows, remainder=True),
        "none": lambda: rt.shard((rows, None)),
        "dict": lambda: rt.shard({"a": rows, "b": [rows, rows[:, None]]}),
        "list": lambda: rt.shard(list(range(9))),
        "lists": lambda: rt.shard(([[i, i] for i in range(9)], [str(i) for i in range(9)])),
        "tensor": lambda: rt.shard(tf.constant(rows)),
        "csr": lambda: rt.shard(table),
        "coo": lambda: rt.shard(table.tocoo()),
        "sparse": lambda: rt.shard(tf.sparse.from_dense(np.diag(rows))),
        "ragged": lambda: rt.shard(tf.ragged.constant([[i] * i for i in range(9)])),
        "iterator": lambda: list(rt.shard(iter(range(9)))),
        "all of an iterator": lambda: list(rt.shard(iter(range(9)), remainder=True)),
        "bits": lambda: rt.shard(np.arange(9) / 3 + 1e-9 * run.rank).round(),
        "other lengths": lambda: rt.shard((rows, rows[:8])),
        "few": lambda: rt.shard(rows[:1]),
        "number": lambda: rt.shard(3),
        "loader": lambda: rt.shard(loader()),
        "own order": lambda: rt.shard((own, rows)),
        "own labels": lambda: rt.shard((rows, [str(i) for i in own])),
        "own sparse": lambda: rt.shard(table[own]),
        "own length": lambda: rt.shard(np.arange(8 + run.rank)),
    }
    return [epochs, {name: _attempt(make) for name, make in found.items()}]
