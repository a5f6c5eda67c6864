# SPDX-License-Identifier: Apache-2.0
"""Cases of cases.py with collective operations on tensors."""

from __future__ import annotations

import itertools
from typing import Any

import tensorflow as tf

import rdmatensor.tensorflow as plugin
import rdmatensor.train as rt
from rdmatensor.train.backend.tensorflow.operations import trim


def operations() -> Any:
    """Every operation and its gradient, in eager code and in a function."""
    run = rt.init()
    mine = (
        tf.reshape(tf.range(4 * run.size, dtype=tf.float32), [2 * run.size, 2]) + 100.0 * run.rank
    )
    found: dict[str, Any] = {}

    def each(value: Any) -> dict[str, Any]:
        return {
            "mean": rt.ops.all_reduce(value, op="mean"),
            "sum": rt.ops.all_reduce(value, op="sum"),
            "max": rt.ops.all_reduce(value, op="max"),
            "min": rt.ops.all_reduce(value, op="min"),
            "product": rt.ops.all_reduce(value * 0.01, op="product"),
            "scatter": rt.ops.reduce_scatter(value),
            "gather": rt.ops.all_gather(value),
            "all_to_all": rt.ops.all_to_all(value),
            "broadcast": rt.ops.broadcast(value, root=run.size - 1),
        }

    def gradients(value: Any) -> dict[str, Any]:
        found = {}
        for name, act in {
            "mean": lambda x: rt.ops.all_reduce(x, op="mean"),
            "sum": lambda x: rt.ops.all_reduce(x, op="sum"),
            "scatter": rt.ops.reduce_scatter,
            "gather": rt.ops.all_gather,
            "all_to_all": rt.ops.all_to_all,
            "broadcast": rt.ops.broadcast,
        }.items():
            with tf.GradientTape() as tape:
                tape.watch(value)
                result = act(value)
                # Each element counts differently, in each process.
                weights = tf.reshape(tf.range(tf.size(result), dtype=tf.float32), tf.shape(result))
                loss = tf.reduce_sum(result * (weights + 1000.0 * run.rank))
            found[name] = tape.gradient(loss, value)
        return found

    for how, wrap in {"eager": lambda f: f, "function": tf.function}.items():
        found[how] = {name: x.numpy().tolist() for name, x in wrap(each)(mine).items()}
        found[f"{how} gradients"] = {
            name: x.numpy().tolist() for name, x in wrap(gradients)(mine).items()
        }
    kept, dropped = tf.ones([1 << 20]), tf.ones([1 << 21])
    del dropped
    found["trimmed"] = [trim(), float(tf.reduce_sum(kept))]
    traced = tf.function(each).get_concrete_function(tf.TensorSpec([2 * run.size, 2]))
    found["shapes"] = {name: x.shape.as_list() for name, x in traced.structured_outputs.items()}
    # Each operation has the token of the one before, which no optimizer of graphs takes away.
    starts = [op for op in traced.graph.get_operations() if op.type == "RdmatensorStart"]
    found["ordered"] = not any(op.inputs[-1].dtype == tf.variant for op in starts[:1]) and all(
        after.inputs[-1] is before.outputs[0] for before, after in itertools.pairwise(starts)
    )
    rt.ops.barrier()
    tf.function(rt.ops.barrier)()
    return found


def types() -> Any:
    """Sums of each type."""
    rt.init()
    names = ["float16", "bfloat16", "float32", "float64", "int8", "int16", "int32", "int64"]
    names += ["uint8", "uint16", "uint32", "uint64"]
    sums = {}
    for name in names:
        value = tf.cast(tf.range(5) + rt.rank(), name)
        sums[name] = tf.cast(rt.ops.all_reduce(value, op="sum"), tf.float64).numpy().tolist()
    empty = rt.ops.all_reduce(tf.zeros([0, 3]))
    big = rt.ops.all_reduce(tf.ones([5_000_000]), op="sum")
    return [sums, empty.shape.as_list(), float(tf.reduce_max(big)), float(tf.reduce_min(big))]


def many_in_flight() -> Any:
    """Several operations at once in one function, also in a loop and behind a condition."""
    run = rt.init()

    @tf.function
    def many(value: Any) -> Any:
        return [rt.ops.all_reduce(value * i, op="sum", name=f"number {i}") for i in range(50)]

    @tf.function
    def looped(value: Any) -> Any:
        total = tf.zeros_like(value)
        for i in tf.range(20):
            if i % 3 == 0:
                total += rt.ops.all_reduce(value + tf.cast(i, tf.float32), op="sum", name="third")
            else:
                total += rt.ops.all_reduce(value, op="max", name="other")
        return total

    value = tf.ones([1000]) * (run.rank + 1.0)
    results = [float(each[0]) for each in many(value)]
    return [results, float(looped(value)[0]), float(tf.function(many)(value)[7][999])]


def in_place() -> Any:
    """Whether what is used again keeps its values, and where the operation works."""
    run = rt.init()
    found = []
    for count in (10, 1_000_000):

        @tf.function
        def used_again(value: Any) -> Any:
            twice = value * 2.0
            return (
                twice,
                rt.ops.all_reduce(twice, op="mean"),
                rt.ops.all_reduce(value * 4.0, op="sum"),
            )

        value = tf.fill([count], run.rank + 1.0)
        results = [*used_again(value), rt.ops.all_reduce(value, op="mean"), value]
        found.append([[float(x) for x in (each[0], each[-1])] for each in results])

    @tf.function
    def used_once(value: Any) -> Any:
        return rt.ops.all_reduce(value * 4.0, op="sum")

    before = plugin.stats()["arena"]["used_bytes"]
    kept = used_once(value)
    grown = plugin.stats()["arena"]["used_bytes"] - before
    return [found, rt.statistics()["copied_bytes"], [grown, kept.shape.num_elements() * 4]]


def unknown_sizes() -> Any:
    """Functions that do not know the first dimension when they are traced, and that are traced anew."""
    run = rt.init()
    traces = []

    def each(value: Any) -> Any:
        traces.append(value.shape)
        return {
            "sum": rt.ops.all_reduce(value, op="sum"),
            "scatter": rt.ops.reduce_scatter(value),
            "gather": rt.ops.all_gather(value),
            "all_to_all": rt.ops.all_to_all(value),
            "broadcast": rt.ops.broadcast(value, root=1),
        }

    def squares(value: Any) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(value)
            loss = sum(tf.reduce_sum(tf.square(result)) for result in each(value).values())
        return tape.gradient(loss, value)

    unknown = [tf.TensorSpec([None, 2])]
    found: dict[str, Any] = {}
    for how, more in {"unknown": {"input_signature": unknown}, "anew": {}}.items():
        functions = tf.function(each, **more), tf.function(squares, **more)
        del traces[:]
        found[how] = [
            {
                **{name: x.numpy().tolist() for name, x in functions[0](value).items()},
                "gradient": functions[1](value).numpy().tolist(),
            }
            for value in (_rows(run.rank, run.size * rows) for rows in (1, 3, 1))
        ]
        found[f"{how} traces"] = len(traces)
    shapes = functions[0].get_concrete_function(*unknown).structured_outputs
    found["shapes"] = {name: x.shape.as_list() for name, x in shapes.items()}
    return found


def _rows(rank: int, count: int) -> Any:
    return tf.reshape(tf.range(2.0 * count), [count, 2]) + 100.0 * rank
