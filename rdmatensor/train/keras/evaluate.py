# SPDX-License-Identifier: Apache-2.0
"""Evaluate a model, and predict with it, on data of which each process takes a part."""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from ...errors import UsageError
from ..backend.data import agree, arrays_of
from ..backend.rows import Batches, rows_of
from ..backend.tensorflow import operations
from ..run.session import Session, current
from . import metrics

_BATCH = 32  # Keras's


def evaluate(
    model: Any,
    x: Any,
    y: Any = None,
    *,
    batch_size: int | None = None,
    sample_weight: Any = None,
    return_dict: bool = False,
    **more: Any,
) -> Any:
    """Evaluate a model on all of the data, of which each process takes every size-th batch.

    All processes call it, with the same data in the same order, and get the same numbers, in the form of
    `model.evaluate`: those of one process, because each row counts once and the states of metrics are added
    up. A metric of your own whose states cannot be added becomes the mean over the processes, with a warning.
    `x`, `y` and `sample_weight` are as for `model.evaluate`: arrays, a tf.data.Dataset of batches or a
    keras.utils.PyDataset; `more` goes there, too. Models keep the states of this process's own part.

    Raises UsageError for other data, such as generators, and if the processes' data or its order differs.
    """
    run = current()
    size = batch_size or _BATCH
    if run.size == 1:
        return model.evaluate(
            x,
            y,
            batch_size=batch_size,
            sample_weight=sample_weight,
            return_dict=return_dict,
            **more,
        )
    if more.get("steps") is not None:
        raise UsageError(
            "evaluate() over all processes takes whole data: instead of steps=, give dataset.take(steps)"
        )
    metrics.watch(model)
    (x, y, sample_weight), has_any = _part(run, (x, y, sample_weight), size)
    more["verbose"] = more.get("verbose", "auto") if run.rank == 0 else 0
    logs = model.evaluate(
        x, y, batch_size=size, sample_weight=sample_weight, return_dict=True, **more
    )
    if not has_any:  # it has evaluated what counts elsewhere, to have metrics
        model.reset_metrics()
        logs = {name: value for name, value in model.get_metrics_result().items() if name in logs}
    found = metrics.merged(run, model, logs, {"": metrics.counted(model)})
    return found if return_dict else model._flatten_metrics_in_order(found)


def predict(model: Any, x: Any, *, batch_size: int | None = None) -> Any:
    """Predict for all of the data, of which each process takes every size-th batch.

    All processes call it, with the same data in the same order, and get what `model.predict` returns for all
    of it, in the order of the data. `x` is as for `evaluate`; of the elements of a dataset, the first part is
    taken, as Keras does.

    Raises UsageError as `evaluate` does.
    """
    run = current()
    if run.size == 1:
        return model.predict(x, batch_size=batch_size, verbose=0)
    size = batch_size or _BATCH
    (part, _, _), has_any = _part(run, (x, None, None), size)
    outputs = list(_outputs(model, part, size))
    leaves = [[np.asarray(leaf) for leaf in keras.tree.flatten(each)] for each in outputs]
    parts = _exchanged(run, leaves if has_any else [], len(leaves[0]))
    count = sum(len(each) for each in parts)
    ordered = [parts[i % run.size][i // run.size] for i in range(count)]
    joined = [np.concatenate(each) for each in zip(*ordered, strict=True)]
    typed = [
        each if each.dtype.kind != "V" else each.view(leaf.dtype)
        for each, leaf in zip(joined, leaves[0], strict=True)
    ]
    return keras.tree.pack_sequence_as(outputs[0], typed)


def _part(run: Session, data: tuple[Any, Any, Any], size: int) -> tuple[tuple[Any, Any, Any], bool]:
    """Return this process's batches of x, y and weights, and whether there are any; else the first of all."""
    x = data[0]
    if isinstance(x, tf.data.Dataset):
        agree(run, x)
        part = x.shard(run.size, run.rank)
        has_any = any(True for _ in part.take(1))
        return (part if has_any else x.take(1), *data[1:]), has_any
    if isinstance(x, keras.utils.PyDataset):
        count = x.num_batches
        if count is None:
            raise UsageError("the PyDataset has no end: give it a __len__")
        has_any = count > run.rank
        mine = (count - run.rank + run.size - 1) // run.size
        part = Batches(x, run.rank, run.size, mine, 0) if has_any else Batches(x, 0, count, 1, 0)
        return (part, *data[1:]), has_any
    if isinstance(x, Iterator):
        raise UsageError(
            "evaluate() and predict() cannot tell how long an iterator is, and it has one pass: give a "
            "tf.data.Dataset (from_generator), a keras.utils.PyDataset or arrays"
        )
    arrays, count = arrays_of(data)
    agree(run, arrays)
    starts = range(run.rank * size, count, run.size * size)
    rows: list[Any] = [np.arange(start, min(start + size, count)) for start in starts]
    mine = np.concatenate(rows) if rows else np.arange(min(size, count))
    found = tf.nest.map_structure(lambda each: rows_of(each, mine), arrays)
    return found, bool(rows)


def _outputs(model: Any, x: Any, size: int) -> Iterator[Any]:
    """Yield the model's outputs for each batch."""
    if isinstance(x, (tf.data.Dataset, keras.utils.PyDataset)):
        batches = x if isinstance(x, tf.data.Dataset) else (x[i] for i in range(len(x)))
        for each in batches:
            yield model.predict_on_batch(keras.utils.unpack_x_y_sample_weight(each)[0])
        return
    outputs = model.predict(x, batch_size=size, verbose=0)
    for start in range(0, len(keras.tree.flatten(outputs)[0]), size):
        rows = slice(start, start + size)
        yield keras.tree.map_structure(lambda each, rows=rows: each[rows], outputs)


def _exchanged(run: Session, batches: list[list[Any]], leaves: int) -> list[list[list[Any]]]:
    """Return the batches of all processes, of so many arrays each. Types that numpy lacks come as bytes."""
    file = io.BytesIO()
    np.savez(file, *[leaf for batch in batches for leaf in batch])
    mine = np.frombuffer(file.getvalue(), np.uint8)
    lengths = operations.all_gather(run, tf.constant([len(mine)], tf.int64), "lengths of results")
    longest = int(tf.reduce_max(lengths))
    padded = tf.constant(np.pad(mine, (0, longest - len(mine))))
    every = operations.all_gather(run, padded, "results").numpy()
    found = []
    for rank, length in enumerate(lengths.numpy()):
        with np.load(io.BytesIO(every[rank * longest :][:length].tobytes())) as file:
            arrays = [file[f"arr_{i}"] for i in range(len(file.files))]
        found.append([arrays[i : i + leaves] for i in range(0, len(arrays), leaves)])
    return found
