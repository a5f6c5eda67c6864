# SPDX-License-Identifier: Apache-2.0
"""Turns a Keras model into one training step of parameter servers and workers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from ..model.errors import AnalysisError


@dataclass(frozen=True)
class PlacedOn:
    """Puts variables on `ps` parameter servers and lets each of `workers` workers compute.

    `spread` is how variables are dealt out, in the order of their creation: in turn, or each to the
    server that holds the fewest bytes.
    """

    ps: int = 1
    workers: int = 1
    spread: Literal["round_robin", "bytes"] = "round_robin"

    def __post_init__(self) -> None:
        if self.ps < 1 or self.workers < 1:
            raise AnalysisError("PlacedOn needs at least one parameter server and one worker")
        if self.spread not in ("round_robin", "bytes"):
            raise AnalysisError(f"spread is {self.spread!r}: it must be 'round_robin' or 'bytes'")

    @classmethod
    def cluster(
        cls,
        cluster: Mapping[str, Sequence[str]],
        spread: Literal["round_robin", "bytes"] = "round_robin",
    ) -> PlacedOn:
        """Uses all tasks of the jobs "ps" and "worker"."""
        return cls(len(cluster.get("ps", ())), len(cluster.get("worker", ())), spread)

    def devices(self, sizes: Sequence[int]) -> list[str]:
        """The devices of variables of these sizes in bytes."""
        held = [0] * self.ps
        chosen = []
        for number, size in enumerate(sizes):
            task = number % self.ps if self.spread == "round_robin" else held.index(min(held))
            held[task] += size
            chosen.append(f"/job:ps/replica:0/task:{task}/device:CPU:0")
        return chosen

    def worker(self, task: int) -> str:
        """The device of a worker."""
        return f"/job:worker/replica:0/task:{task}/device:CPU:0"


def training_step(model: Any, strategy: PlacedOn, batch_size: int | None) -> Any:
    """A FuncGraph in which each worker takes one step of gradient descent with `model`.

    The loss is the mean square of the outputs, and the optimiser has no state. Other losses and optimisers
    give the same plan: a loss stays on its worker, and an optimiser's state stays with the variables.
    """
    import tensorflow as tf
    from tensorflow.python.framework.func_graph import FuncGraph

    if not getattr(model, "inputs", None):
        raise AnalysisError(
            f"model {model.name!r} has no inputs yet: start it with keras.Input, or call it once"
        )
    graph = FuncGraph(f"{model.name}_step")
    with graph.as_default():
        for task in range(strategy.workers):
            with tf.name_scope(f"worker{task}/"), tf.device(strategy.worker(task)):
                _one_worker(model, batch_size, tf)
    return graph


def _one_worker(model: Any, batch_size: int | None, tf: Any) -> None:
    inputs = [
        tf.compat.v1.placeholder(tensor.dtype, [batch_size, *tensor.shape[1:]], _name(tensor))
        for tensor in model.inputs
    ]
    variables = [variable.value for variable in model.trainable_variables]
    with tf.GradientTape() as tape:
        outputs = tf.nest.flatten(model(inputs if len(inputs) > 1 else inputs[0], training=True))
        losses = [tf.reduce_mean(tf.square(tf.cast(output, tf.float32))) for output in outputs]
        loss = tf.add_n(losses)
    for variable, gradient in zip(variables, tape.gradient(loss, variables), strict=True):
        if isinstance(gradient, tf.IndexedSlices):
            tf.raw_ops.ResourceScatterSub(
                resource=variable.handle, indices=gradient.indices, updates=gradient.values
            )
        elif gradient is not None:
            with tf.device(None):  # where the variable is
                rate = tf.constant(0.01, gradient.dtype)
            tf.raw_ops.ResourceApplyGradientDescent(var=variable.handle, alpha=rate, delta=gradient)


def _name(tensor: Any) -> str:
    """The name of a Keras input with the characters that a node's name may have."""
    return "".join(c if c.isalnum() else "_" for c in tensor.name).lstrip("_") or "input"
