# SPDX-License-Identifier: Apache-2.0
"""What a synchronizer does to its vector reaches variables by an exchange, and by nothing else."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import tensorflow as tf

from rdmatensor.train.backend.tensorflow.exchange import Exchange
from rdmatensor.train.sync.base import Array, Parameters


class _Counting(Parameters):
    def begin(self, run: Any, x: Array) -> int:
        self.x = x
        return 1

    def exchange(self, x: Array, step: int, rate: float) -> int:
        assert x is self.x
        x += 1
        return step + 1


def test_variables_share_no_memory_with_the_synchronizer() -> None:
    run: Any = SimpleNamespace(group=object(), step=0, closing=[], check=lambda: None)
    # By chance a vector may lie where TensorFlow uses it as it is, so there are many.
    for size in range(1000, 1024):
        sync = _Counting()
        exchange = Exchange(run, sync)
        variable = tf.Variable(tf.zeros([size]))

        @tf.function
        def step(exchange: Exchange = exchange, variable: Any = variable) -> None:
            exchange.before([variable])
            exchange.after([variable], 1, 0.1)

        step()
        sync.x += 5
        np.testing.assert_array_equal(variable.numpy(), np.ones(size, "f"))
