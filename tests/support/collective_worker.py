# SPDX-License-Identifier: Apache-2.0
"""A worker of MultiWorkerMirroredStrategy in its own process: collective_worker.py ADDRESSES_JSON INDEX
PROTOCOL. Says which process it is, then answers each line of standard input, [command, arguments] as JSON,
with one line of JSON.

Values are made from seeds, so that the test computes what must come out of them.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.eager import cancellation

import rdmatensor.faults
import rdmatensor.tensorflow
from rdmatensor.topology.tensorflow import use_in_tensorflow
from support import device_of_tests
from support.collective_values import value

STEPS = 8


class Worker:
    """The commands."""

    def __init__(self, addresses: list[str], index: int, protocol: str) -> None:
        self.index = index
        self.size = len(addresses)
        resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
            tf.train.ClusterSpec({"worker": addresses}),
            task_type="worker",
            task_id=index,
            rpc_layer=protocol,
        )
        self.strategy = tf.distribute.MultiWorkerMirroredStrategy(resolver)
        kind = "GPU" if tf.config.list_logical_devices("GPU") else "CPU"
        self.device = f"/job:worker/replica:0/task:{index}/device:{kind}:0"

    def _operation(
        self,
        kind: str,
        x: Any,
        members: list[int],
        key: int,
        group: int,
        timeout_s: float,
        **options: Any,
    ) -> Any:
        common: dict[str, Any] = {
            "group_size": len(members),
            "group_key": group,
            "instance_key": key,
            "timeout_seconds": timeout_s,
        }
        raw = tf.raw_ops
        if kind == "reduce_v1":
            final = {"merge_op": "Add", "final_op": "Id", "subdiv_offsets": [0]} | options
            return raw.CollectiveReduce(input=x, **common, **final)
        if kind == "broadcast":
            if members[0] == self.index:
                return raw.CollectiveBcastSendV2(input=x, **common)
            common |= {"shape": tf.shape(x), "T": x.dtype}
            return raw.CollectiveBcastRecvV2(**common)
        if kind == "all_to_all":
            return raw.CollectiveAllToAllV2(input=x, ordering_token=[], **common)
        if kind == "all_gather":
            return raw.CollectiveGatherV2(input=x, ordering_token=[], **common)
        operation = {
            "all_reduce": raw.CollectiveReduceV2,
            "reduce_scatter": raw.CollectiveReduceScatterV2,
        }[kind]
        final = {"merge_op": "Add", "final_op": "Id"} | options
        return operation(input=x, ordering_token=[], **common, **final)

    def run(
        self,
        operations: list[dict[str, Any]],
        members: list[int],
        group: int,
        times: int = 1,
        timeout_s: float = 0,
        cancel_after_s: float | None = None,
        device: str = "",
    ) -> Any:
        """All operations in one function, which runs `times` times; the last results as hexadecimal
        text, or [class, message] of an error. `device`: what the tests' device does meanwhile."""
        inputs = [
            tf.constant(value(self.index, op["dtype"], op["shape"], op.get("seed", 0)))
            for op in operations
        ]

        @tf.function(jit_compile=False)
        def function() -> list[Any]:
            with tf.device(self.device):
                return [
                    self._operation(
                        op["kind"],
                        tf.identity(x),
                        members,
                        op.get("key", 1 + i),
                        group,
                        timeout_s,
                        **op.get("options", {}),
                    )
                    for i, (op, x) in enumerate(zip(operations, inputs, strict=True))
                ]

        call: Callable[[], Any] = function
        if cancel_after_s is not None:
            manager = cancellation.CancellationManager()
            call = manager.get_cancelable_function(function.get_concrete_function())
            threading.Timer(cancel_after_s, manager.start_cancel).start()
        if device:
            device_of_tests.numbers(device)
        return self._outcome(call, times)

    def _outcome(self, call: Callable[[], Any], times: int) -> Any:
        begin = time.monotonic()
        try:
            for _ in range(times):
                results = call()
            return {"results": [result.numpy().tobytes().hex() for result in results]}
        except tf.errors.OpError as error:
            seconds = time.monotonic() - begin
            return {"error": type(error).__name__, "words": error.message, "seconds": seconds}

    def reduce_for_ever(self, elements: int, group: int) -> Any:
        """All-reduces one after the other, until one fails. Says "begun" when the first is over."""
        x = tf.constant(value(self.index, "float32", [elements], 0))
        members = list(range(self.size))

        @tf.function
        def function() -> Any:
            with tf.device(self.device):
                return [self._operation("all_reduce", tf.identity(x), members, 1, group, 0)]

        outcome = self._outcome(function, 1)
        print(json.dumps("begun"), flush=True)
        while "error" not in outcome:
            outcome = self._outcome(function, 1)
        return outcome

    def strategy_reduce(self, dtype: str, shape: list[int], timeout_s: float = 0) -> Any:
        """What a user of the strategy calls: a sum and a gathering of all replicas."""
        options = tf.distribute.experimental.CommunicationOptions(timeout_seconds=timeout_s or None)
        x = tf.constant(value(self.index, dtype, shape, 0))

        @tf.function
        def function() -> list[Any]:
            def replica() -> list[Any]:
                context = tf.distribute.get_replica_context()
                total = context.all_reduce(tf.distribute.ReduceOp.SUM, x, options)
                return [total, context.all_gather(x, axis=0, options=options)]

            return list(self.strategy.run(replica))

        return self._outcome(function, 1)

    def train(self) -> Any:
        """The losses and the last weights, as hexadecimal text."""
        random = np.random.default_rng(11)
        x = random.normal(size=(64, 100)).astype("f")
        y = np.tanh(x @ random.normal(size=(100, 10)).astype("f"))
        part = slice(self.index * 64 // self.size, (self.index + 1) * 64 // self.size)
        # Only the first worker's initial values count: the strategy broadcasts them.
        random = np.random.default_rng(self.index)
        with self.strategy.scope():
            weights = [
                tf.Variable(random.normal(scale=0.1, size=shape).astype("f"))
                for shape in ((100, 200), (200, 10))
            ]

        @tf.function
        def step() -> Any:
            def replica() -> Any:
                with tf.GradientTape() as tape:
                    hidden = tf.nn.relu(tf.constant(x[part]) @ weights[0])
                    loss = tf.reduce_mean((hidden @ weights[1] - y[part]) ** 2)
                gradients = tape.gradient(loss, weights)
                context = tf.distribute.get_replica_context()
                summed = context.all_reduce(tf.distribute.ReduceOp.MEAN, gradients)
                for weight, gradient in zip(weights, summed, strict=True):
                    weight.assign_sub(0.1 * gradient)
                return loss

            losses = self.strategy.run(replica)
            return self.strategy.reduce(tf.distribute.ReduceOp.MEAN, losses, axis=None)

        losses = [step().numpy().tobytes().hex() for _ in range(STEPS)]
        ends = [weight.numpy().tobytes().hex() for weight in weights]
        return {"losses": losses, "weights": ends}

    def faults(self, text: str) -> dict[str, int]:
        """Puts the setting FAULTS in force; how many there were."""
        rdmatensor.config.set("FAULTS", text)
        return rdmatensor.faults.counts()

    def topology(self, path: str | None) -> None:
        """Gives groups that are formed from now on trees, or takes those away."""
        use_in_tensorflow(path)

    def commands(self) -> dict[str, Callable[..., Any]]:
        """By name."""
        return {
            "run": self.run,
            "reduce_for_ever": self.reduce_for_ever,
            "strategy_reduce": self.strategy_reduce,
            "train": self.train,
            "faults": self.faults,
            "stats": rdmatensor.tensorflow.stats,
            "reset": rdmatensor.tensorflow.reset_stats,
            "topology": self.topology,
        }


def main() -> None:
    """Start the strategy, then obey."""
    addresses, index, protocol = sys.argv[1:4]
    device_of_tests.load()
    commands = Worker(json.loads(addresses), int(index), protocol).commands()
    print(json.dumps({"pid": os.getpid()}), flush=True)
    for line in sys.stdin:
        command, arguments = json.loads(line)
        print(json.dumps(commands[command](**arguments)), flush=True)
    os._exit(0)


if __name__ == "__main__":
    main()
