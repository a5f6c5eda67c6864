# SPDX-License-Identifier: Apache-2.0
"""Prepare a Keras model that was written for one process, and its tables of embeddings, to train in many."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from ...errors import UsageError
from ..backend import mixin
from ..backend.distributed import OptimizerHooks, move_outwards
from ..backend.optimizers import sync_of
from ..backend.tensorflow import operations
from ..backend.tensorflow.parts import part_of
from ..keras.distributing import distribute
from ..keras.saving import WholeModel, in_parts
from ..run.session import Session, current
from ..sync.base import Parameters
from ..sync.compression import Compression
from .benchmark import decide
from .choice import Size
from .choice import partitions as best_partitions
from .embedding import put_rows
from .explain import Explanation, Table
from .limits import check_model, why_not_by_rows, why_not_owned
from .measure import partition_times
from .placement import WAYS, Placement, Way, is_owned
from .sample import uses
from .updates import update_by_rows


class Parallel(WholeModel):
    """The class that parallelize() puts in front of a model's."""

    _rdmatensor_explanation: Explanation

    def compile(self, optimizer: Any = "rmsprop", *more: Any, **named: Any) -> None:
        """Compile the model, with an optimizer that distribute() got or gets."""
        optimizer = keras.optimizers.get(optimizer)
        inner = getattr(optimizer, "inner_optimizer", optimizer)
        if not hasattr(optimizer, "_rdmatensor_sync") and not hasattr(inner, "_rdmatensor_sync"):
            optimizer = distribute(optimizer)
        super().compile(optimizer, *more, **named)  # type: ignore[misc]
        model: Any = self
        move_outwards(model.optimizer)
        if any(part_of(each) and not is_owned(each) for each in model.variables):
            raise UsageError("split() and parallelize() cannot share a model")
        sync = sync_of(model.optimizer)
        if isinstance(sync, OptimizerHooks):
            raise UsageError(
                f"{type(sync).__name__} and parallelize() cannot share a model: use AllReduce()"
            )
        if isinstance(sync, (Parameters, Compression)) and in_parts(self):
            raise UsageError(
                "tables with owners are trained synchronously: use AllReduce(), or "
                'parallelize(model, ways="gather")'
            )
        update_by_rows(model.optimizer)


def parallelize(
    model: Any,
    sample: Any = None,
    *,
    ways: Way | Mapping[str, Way] | None = None,
    partitions: int | None = None,
    row_wise: bool = True,
) -> Any:
    """Make a Keras model that was written for one process train in all of them. Return it, changed.

    For each table of embeddings (keras.layers.Embedding) it chooses what becomes of gradients and rows:
    "dense" all-reduces the gradient of the whole table; "gather" sends the rows that a batch uses to all
    processes; "owners" keeps each row in one process, which the others ask for rows and send gradients to.
    The choice is the fastest one, by the share of rows that batches of `sample` use, and by what steps cost
    in this group, which is measured once and takes some seconds. Ways that are predicted to be close are
    measured for the table, which takes some seconds more. explain() tells what was chosen, and why. Gradients
    of all other variables are all-reduced.

    `sample` is what fit() gets in this process: a batch of inputs, `(x, y)`, a list of such batches, or a
    dataset, of which 8 batches are read. `ways` decides instead: for all tables, or by the layer's name; a
    sample is needed for those that it does not name. `partitions` is how many parts of a table are updated at
    a time; by default it is measured. With `row_wise`, the optimizer updates only the rows that a step uses,
    whatever the way: SGD, Adagrad, Adam and AdamW do so in C++. Adam and momentum then leave the other rows
    as they are, while Keras moves them on.

    All processes call it, after init() and before compile(), which distributes the optimizer if it is not;
    rank 0's tables count. save(), save_weights() and load_weights() treat tables as a whole and are called by
    all processes; files load where rdmatensor is not installed. Every process has to take equally many steps
    in fit(), evaluate() and predict() if a table has owners.

    Raises UsageError if the model is not built, if a table cannot have owners and `ways` wants them, or if
    there is neither a sample nor a way; and what init() raises if a process is lost.
    """
    run = current()
    check_model(model)
    layers = [each for each in model._flatten_layers() if isinstance(each, keras.layers.Embedding)]
    wishes = _wishes(layers, ways)
    samples: Mapping[int, float] = {}
    if run.size == 1:
        plans = [Table.of(layer, "gather", 1, "one process") for layer in layers]
    else:
        clear = [
            _decided(model, layer, wish, partitions or run.size)
            for layer, wish in zip(layers, wishes, strict=True)
        ]
        plans, samples = _measured(run, model, layers, clear, sample, partitions)
    for layer, plan in zip(layers, plans, strict=True):
        if why_not_by_rows(layer) is None:
            put_rows(
                layer,
                Placement(
                    run, layer.name, plan.rows, plan.width, plan.way, plan.partitions, row_wise
                ),
            )
    tables = {id(each._embeddings) for each in layers if not each.quantization_mode}
    others = [each for each in model.trainable_variables if id(each) not in tables]
    nbytes = sum(math.prod(each.shape) * tf.as_dtype(each.dtype).size for each in others)
    explanation = Explanation(run.size, plans, (len(others), nbytes), samples)
    mixin.add(model, Parallel, _rdmatensor_run=run, _rdmatensor_explanation=explanation)
    return model


def _wishes(layers: Sequence[Any], ways: Way | Mapping[str, Way] | None) -> list[Way | None]:
    """Return the way that the user wants for each layer, or None."""
    if not isinstance(ways, Mapping):
        named: Mapping[str, Way | None] = {each.name: ways for each in layers}
    else:
        named = ways
    for name, way in named.items():
        if name not in [each.name for each in layers]:
            raise UsageError(f"parallelize(ways=...): the model has no embedding {name!r}")
        if way is not None and way not in WAYS:
            raise UsageError(f"parallelize(ways=...): {way!r} is none of {', '.join(WAYS)}")
    return [named.get(each.name) for each in layers]


def _decided(model: Any, layer: Any, wish: Way | None, owners: int) -> Table | None:
    """Return the plan for a layer that is clear without a measurement, or None."""
    obstacle = why_not_by_rows(layer)
    if obstacle is not None:
        if wish not in (None, "gather"):
            raise UsageError(f'{layer.name} can be shared by "gather" only: {obstacle}')
        return Table.of(layer, "gather", owners, obstacle)
    obstacle = why_not_owned(layer, model)
    if wish == "owners" and obstacle is not None:
        raise UsageError(
            f'the table of {layer.name} cannot have owners: {obstacle}; give it ways={{"{layer.name}": '
            '"gather"} or "dense"'
        )
    if wish is not None:
        return Table.of(layer, wish, owners, "as told")
    if layer.embeddings_regularizer is not None:
        return Table.of(layer, "dense", owners, "it has a regularizer: its gradient is dense")
    if not layer.trainable:
        return Table.of(layer, "gather", owners, "frozen: nothing travels")
    return None


def _measured(
    run: Session,
    model: Any,
    layers: Sequence[Any],
    plans: Sequence[Table | None],
    sample: Any,
    partitions: int | None,
) -> tuple[list[Table], Mapping[int, float]]:
    """Return all plans, with those that depend on the sample, and seconds by the number of partitions."""
    if sample is None or not layers:
        for layer, plan in zip(layers, plans, strict=True):
            if plan is None:
                raise UsageError(
                    f"parallelize() needs to know how {layer.name} is used: give it sample=, a batch as "
                    "fit() gets it, or ways="
                )
        return [each for each in plans if each is not None], {}
    sizes = [
        Size(layer.input_dim, layer.output_dim, use.rows, use.longest, use.ids)
        for layer, use in zip(layers, uses(run, model, layers, sample), strict=True)
    ]
    among: list[Sequence[Way]] = [
        (plan.way,)
        if plan
        else WAYS
        if why_not_owned(layer, model) is None
        else ("dense", "gather")
        for layer, plan in zip(layers, plans, strict=True)
    ]
    choices = decide(run, sizes, among)
    found = []
    for layer, plan, size, choice in zip(layers, plans, sizes, choices, strict=True):
        if plan is not None and not layer.trainable:
            found.append(plan)
            continue
        obstacle = why_not_owned(layer, model)
        why = (
            f"fastest of {len(choice.measured)}, measured"
            if choice.measured
            else "fastest, computed"
        )
        why += "" if obstacle is None else f"; no owners: {obstacle}"
        plan = plan or Table.of(layer, choice.way, partitions or run.size, why)
        found.append(replace(plan, use=size, seconds=choice.seconds))
    owned = [size for size, plan in zip(sizes, found, strict=True) if plan.way == "owners"]
    samples: Mapping[int, float] = {}
    if owned and partitions is None:
        samples = partition_times(run, max(owned, key=lambda each: each.used * each.width))
        best_count = np.int64(best_partitions(samples, run.size))
        count = int(operations.broadcast(run, best_count, 0, "number of partitions"))
        found = [
            replace(each, partitions=count) if each.way == "owners" else each for each in found
        ]
    return found, samples
