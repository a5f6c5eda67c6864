# SPDX-License-Identifier: Apache-2.0
"""Compare, in all processes, what layers have beside their weights that changes what they compute.

Numbers of Keras's own layers are in their config. A layer of the user's has them in attributes, too, or in
what its functions refer to.
"""

from __future__ import annotations

import dataclasses
import inspect
import json
import types
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any, NamedTuple
from zlib import crc32

import keras
import numpy as np
import tensorflow as tf

from ...errors import UsageError
from ..backend.tensorflow import operations
from ..run.session import Session

# What may differ: names that Keras counts up, seeds, and initial weights, which are rank 0's everywhere.
_FREE = ("name", "seed", "shared_object_id", "code")
# Longer arrays are compared by a checksum, so that rounding makes a difference.
_MOST_NUMBERS = 4096
_SHOWN = 60
_ADAPTED = "adapted "


class _Fact(NamedTuple):
    """A thing that a layer has: what errors show, a checksum, and the numbers, if they are few."""

    shown: str
    checksum: int
    numbers: list[float] | None


def compare(run: Session, model: Any) -> None:
    """Raise UsageError in every process if a layer is not the same in all of them. All call it.

    Normalization layers that only rank 0 has adapted are no difference: they follow their variables.
    """
    facts = dict(_facts_of(model))
    text = json.dumps(facts).encode()
    checksums = _gathered(run, np.array([crc32(text), len(text)], np.int64))
    if (checksums == checksums[0]).all():
        return
    names = [layer.name for layer in model._flatten_layers()]
    mine = np.zeros(int(checksums[:, 1].max()), np.uint8)
    mine[: len(text)] = np.frombuffer(text, np.uint8)
    rows = _gathered(run, mine)
    each = [
        json.loads(row[:size].tobytes()) for row, size in zip(rows, checksums[:, 1], strict=True)
    ]
    for rank, others in enumerate(each[1:], 1):
        for key in [*each[0], *(key for key in others if key not in each[0])]:
            here, there = each[0].get(key), others.get(key)
            if there is None and _ADAPTED in key:
                continue
            if not _is_same(here, there):
                _complain(names, key, here, there, rank)


def follow_variables(model: Any) -> None:
    """Let layers that keep constants beside their variables take them from these, which were broadcast."""
    for layer in model._flatten_layers():
        if isinstance(layer, keras.layers.Normalization):
            layer.finalize_state()


def _gathered(run: Session, values: Any) -> Any:
    own = tf.constant(values[np.newaxis])
    return operations.all_gather(run, own, "what layers have beside weights").numpy()


def _is_same(here: Any, there: Any) -> bool:
    if here is None or there is None:
        return here is there
    one, other = _Fact(*here), _Fact(*there)
    if one.checksum == other.checksum:
        return True
    if one.numbers is None or other.numbers is None or len(one.numbers) != len(other.numbers):
        return False
    # The same sums in another order, on another machine.
    return np.allclose(one.numbers, other.numbers, rtol=1e-5, atol=1e-8, equal_nan=True)


def _complain(names: list[str], key: str, here: Any, there: Any, rank: int) -> None:
    number, kind, what = key.split("|", 2)
    # Keras counts names in each process for itself: they may be others elsewhere.
    name = names[int(number)] if int(number) < len(names) else f"number {number}"
    one, other = (each[0] if each is not None else "not there" for each in (here, there))
    remedy = "make it from the same values in all processes"
    if _ADAPTED in what or "table" in what or "bin_boundaries" in what:
        remedy = (
            "adapt it to the same data in all processes, all of it and not what rt.shard() gives"
        )
    raise UsageError(
        f"the layer {name} ({kind}) is not the same in all processes: {what} is {one} at rank 0, and "
        f"{other} at rank {rank}. It is no weight, which fit() would copy: {remedy}"
    )


def _facts_of(model: Any) -> Iterator[tuple[str, _Fact]]:
    for number, layer in enumerate(model._flatten_layers()):
        own = type(layer).__module__.split(".")[0] != "keras"
        for what, fact in _facts_of_layer(layer, own):
            yield f"{number}|{type(layer).__name__}|{what}", fact


def _facts_of_layer(layer: Any, own: bool) -> Iterator[tuple[str, _Fact]]:
    is_model = isinstance(layer, keras.Model)
    if not is_model:
        yield from _facts("", _config_of(layer), True)
    elif hasattr(layer, "operations"):
        yield from _facts_of_graph(layer)
    if isinstance(layer, keras.layers.Normalization) and layer.input_mean is None:
        mean, variance = getattr(layer, "adapt_mean", None), getattr(layer, "adapt_variance", None)
        if mean is not None and (np.any(mean) or np.any(np.asarray(variance) != 1)):
            yield from _facts(_ADAPTED + "mean", np.asarray(mean), True)
            yield from _facts(_ADAPTED + "variance", np.asarray(variance), True)
        return
    for name, value in vars(layer).items():
        if name in _names_of_keras() or name.startswith(("_rdmatensor", "_self_", "token_")):
            continue
        yield from _facts(name, value, own and not (is_model and name.startswith("_")))
    if own:
        yield from _facts("call", type(layer).call, True)


def _config_of(layer: Any) -> Any:
    try:
        return layer.get_config()
    except Exception:  # a layer that cannot be saved
        return None


def _facts_of_graph(model: Any) -> Iterator[tuple[str, _Fact]]:
    """Yield the constants between the layers of a functional model."""
    for number, operation in enumerate(model.operations):
        what = f"operation {number}, {type(operation).__name__}"
        if not isinstance(operation, keras.Layer):
            yield from _facts(what, dict(vars(operation)), True)
        for node in operation._inbound_nodes:
            given = node.arguments._flat_arguments
            values = [each for each in given if not isinstance(each, keras.KerasTensor)]
            yield from _facts(what, values, True)


@cache
def _names_of_keras() -> frozenset[str]:
    """Return the attributes that every layer and every model has."""
    return frozenset([*vars(keras.Layer()), *vars(keras.Model())])


def _facts(what: str, value: Any, numbers: bool, depth: int = 4) -> Iterator[tuple[str, _Fact]]:
    """Yield what is in a value: arrays and tables, and single numbers and texts if `numbers`."""
    if isinstance(value, (bool, int, float, complex, np.generic)) or value is None:
        if numbers and "rank" not in what.lower() and value is not None:
            many = [float(value)] if isinstance(value, (float, np.floating)) else None
            yield what, _Fact(repr(value), crc32(repr(value).encode()), many)
    elif isinstance(value, str):
        if numbers and "/" not in value:  # which a path has
            yield what, _Fact(value[:_SHOWN], crc32(value.encode()), None)
    elif isinstance(value, (np.ndarray, tf.Tensor, tf.Variable)):
        yield from _facts_of_array(what, value)
    elif isinstance(value, _TABLES):
        yield from _facts_of_table(what, value)
    elif depth == 0:
        return
    elif isinstance(value, types.FunctionType):
        used = inspect.getclosurevars(value)
        for name, each in [*used.nonlocals.items(), *used.globals.items()]:
            yield from _facts(f"{what}, {name}", each, numbers, depth - 1)
        yield from _facts(what, list(value.__defaults__ or ()), numbers, depth - 1)
    elif isinstance(value, types.MethodType):
        return
    elif isinstance(value, Mapping):
        policy = "DTypePolicy" in str(value.get("class_name"))
        for key, each in value.items():
            if policy or not (key in _FREE or "initializer" in str(key)):
                yield from _facts(f"{what}, {key}" if what else str(key), each, numbers, depth - 1)
    elif isinstance(value, (list, tuple)):
        plain = all(isinstance(each, (bool, int, float, str, np.generic)) for each in value)
        if plain and value and numbers:
            yield from _facts_of_array(what, np.array(value))
        elif not plain:
            for i, each in enumerate(value):
                yield from _facts(f"{what}[{i}]", each, numbers, depth - 1)
    elif isinstance(value, types.SimpleNamespace) or (
        dataclasses.is_dataclass(value) and not isinstance(value, type)
    ):
        yield from _facts(what, dict(vars(value)), numbers, depth - 1)


_TABLES = (
    tf.lookup.StaticHashTable,
    tf.lookup.experimental.MutableHashTable,
    tf.lookup.experimental.DenseHashTable,
)


def _facts_of_array(what: str, value: Any) -> Iterator[tuple[str, _Fact]]:
    try:
        array = np.asarray(value)
    except (NotImplementedError, TypeError, ValueError):
        return  # a tensor of a function, which was kept by mistake
    is_text = array.dtype.kind in "OSU"
    content = repr(array.tolist()).encode() if is_text else array.tobytes()
    known = array.dtype.kind == "f" and array.size <= _MOST_NUMBERS
    shown = np.array2string(array, precision=6, threshold=6, edgeitems=2).replace("\n", "")
    head = f"{'text' if is_text else array.dtype.name}{list(array.shape)}"
    yield (
        what,
        _Fact(
            shown[:_SHOWN] if array.ndim == 0 else f"{head} {shown[:_SHOWN]}",
            crc32(head.encode() + content),
            array.astype(float).ravel().tolist() if known else None,
        ),
    )


def _facts_of_table(what: str, table: Any) -> Iterator[tuple[str, _Fact]]:
    try:
        keys, values = (each.numpy().tolist() for each in table.export())
    except tf.errors.FailedPreconditionError:
        return  # nothing is in it yet
    rows = sorted(zip(keys, values, strict=True), key=repr)
    text = ", ".join(f"{_word(key)}: {_word(value)}" for key, value in rows)
    shown = f"{len(rows)} rows, {text[:_SHOWN]}"
    yield what, _Fact(shown, crc32(repr(rows).encode()), None)


def _word(value: Any) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)
