# SPDX-License-Identifier: Apache-2.0
"""Random graphs over two tasks: whatever the planner concluded from them, no step waits for ever and
no tensor lands on another one that is still needed."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from plugin.planned import sent, warm_up
from support.clusters import STEP_S, Cluster
from support.graphs import TASK0, TASK1, cross, session

PRIME = 1009
SIZES = [1, 3, 500, 1000, 5000, 20_000]
NODES = 60

Value = Callable[[int], Any]  # what a node is in a step with this number


def _random_graph(seed: int) -> tuple[Any, list[Any], list[Value]]:
    """A random number that everything depends on, fetches of all results, and what they must be."""
    numbers = random.Random(seed)
    tasks = [TASK0, TASK1]
    with tf.device(TASK0):
        # Not fed: of what depends on feeds the planner concludes less.
        given = tf.random.uniform([], 0, 100, tf.int32)
    tensors: list[Any] = []
    values: list[Value] = []
    used: set[int] = set()

    def source(size: int) -> tuple[Any, Value]:
        return tf.range(size) + given, lambda x: np.arange(size, dtype="i") + x

    def combined(size: int) -> tuple[Any, Value]:
        first, second = (numbers.randrange(len(tensors)) for _ in range(2))
        used.update((first, second))
        left, right = (tf.reduce_sum(tensors[each]) % PRIME for each in (first, second))
        base, start = numbers.randrange(PRIME), numbers.randrange(len(tensors))
        used.add(start)
        whole = tensors[start]
        if whole.shape[0] == size:  # element by element
            result = (whole * 3 + left + right + base) % PRIME
            of_start = values[start]
        else:
            result = (tf.range(size) * 3 + left + right + base) % PRIME
            of_start = lambda _: np.arange(size, dtype="i")  # noqa: E731
        a, b = values[first], values[second]
        return result, lambda x: (
            (of_start(x) * 3 + a(x).sum() % PRIME + b(x).sum() % PRIME + base) % PRIME
        ).astype("i")

    for number in range(NODES):
        with tf.device(numbers.choice(tasks)):
            size = numbers.choice(SIZES)
            tensor, value = source(size) if number < 4 else combined(size)
            tensors.append(tensor)
            values.append(_remember(value))
    ends = [each for each in range(NODES) if each not in used]
    return given, [cross(tensors[each]) for each in ends], [values[each] for each in ends]


def _remember(value: Value) -> Value:
    known: dict[int, Any] = {}

    def of(x: int) -> Any:
        if x not in known:
            known[x] = value(x)
        return known[x]

    return of


@pytest.mark.parametrize("seed", range(8))
def test_random_graph(cluster: Cluster, seed: int) -> None:
    with session(cluster, lambda: _random_graph(seed)) as opened:
        given, fetches, values = opened.built
        wrong: list[str] = []

        def steps(count: int) -> None:
            for _ in range(count):
                x, results = opened.run([given, fetches])
                for result, value in zip(results, values, strict=True):
                    if not np.array_equal(result, value(x)):
                        wrong.append(f"step {x}")

        for x in range(100):
            for value in values:
                value(x)
        warm_up(cluster, lambda: steps(1))
        steps(10)
        assert not wrong
        assert sent(cluster, "inline", "dynamic", "bounce", "rpc") == 0
        threads = [threading.Thread(target=steps, args=(15,), daemon=True) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(2 * STEP_S)
        assert not any(thread.is_alive() for thread in threads), "a step waits for ever"
        assert not wrong
