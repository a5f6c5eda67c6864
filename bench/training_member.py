# SPDX-License-Identifier: Apache-2.0
"""A process of bench_training.py: trains with one framework, alone or together with others.

The argument is the program. It needs no package of rdmatensor for the other frameworks.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from line import leave, serve

BATCH, HIDDEN, RATE = 8, 2048, 0.01
LAYERS, WIDTH, DEEP_BATCH = 16, 256, 4096
OPERATIONS = 50


def data(batch: int, width: int, rank: int) -> Any:
    return np.random.default_rng(rank).normal(size=(batch, width)).astype("f")


def _dense(layers: int, width: int, batch: int, rank: int, optimizer: Any) -> Callable[[], Any]:
    """One batch of Keras 3's fit, on TensorFlow."""
    import keras

    parts = [keras.layers.Dense(width, use_bias=False) for _ in range(layers)]
    model = keras.Sequential([keras.Input((width,)), *parts])
    model.compile(optimizer, loss="mse", jit_compile=False)
    x = data(batch, width, rank)
    return lambda: model.train_on_batch(x, x)


def plain_step(rank: int, size: int, port: int) -> Callable[[], Any]:
    """Keras without rdmatensor."""
    import keras

    return _dense(1, HIDDEN, BATCH, rank, keras.optimizers.SGD(RATE))


def keras_step(rank: int, size: int, port: int) -> Callable[[], Any]:
    """Keras with distribute()."""
    import keras

    import rdmatensor.train as rt

    rt.init(rank=rank, size=size, root=f"127.0.0.1:{port}")
    return _dense(1, HIDDEN, BATCH, rank, rt.distribute(keras.optimizers.SGD(RATE)))


def deep_step(rank: int, size: int, port: int) -> Callable[[], Any]:
    """Many layers, with much computation for few bytes: sums and copies take cores, which no link hides."""
    import keras

    import rdmatensor.train as rt

    rt.init(rank=rank, size=size, root=f"127.0.0.1:{port}")
    return _dense(LAYERS, WIDTH, DEEP_BATCH, rank, rt.distribute(keras.optimizers.SGD(RATE)))


def computation_step(rank: int, size: int, port: int) -> Callable[[], Any]:
    """What deep_step computes, without rdmatensor."""
    import keras

    return _dense(LAYERS, WIDTH, DEEP_BATCH, rank, keras.optimizers.SGD(RATE))


def wire_step(rank: int, size: int, port: int) -> Callable[[], Any]:
    """The all-reduces of deep_step, all at once."""
    import tensorflow as tf

    import rdmatensor.train as rt
    from rdmatensor.train.backend.tensorflow import operations

    run = rt.init(rank=rank, size=size, root=f"127.0.0.1:{port}")
    tensors = [tf.Variable(tf.ones((WIDTH, WIDTH))) for _ in range(LAYERS)]

    @tf.function  # type: ignore[untyped-decorator]
    def step() -> Any:
        started = [
            operations.start(run.handle, "all_reduce", [each * 0.5], f"{i}", reduction="mean")
            for i, each in enumerate(tensors)
        ]
        return [tf.reduce_sum(each.finish()[0][0]) for each in started]

    return step


def small_step(rank: int, size: int, port: int) -> Callable[[], Any]:
    """50 all-reduces of 4 KB."""
    import tensorflow as tf

    import rdmatensor.train as rt

    rt.init(rank=rank, size=size, root=f"127.0.0.1:{port}")
    tensors = [tf.ones(1024) for _ in range(OPERATIONS)]

    @tf.function  # type: ignore[untyped-decorator]
    def step() -> Any:
        return [rt.ops.all_reduce(each, "sum", name=f"{i}") for i, each in enumerate(tensors)]

    return step


def unshared_step(rank: int, size: int, port: int) -> Callable[[], Any]:
    """The function of small_step with an operation of this process in the place of each all-reduce."""
    import tensorflow as tf

    tensors = [tf.ones(1024) for _ in range(OPERATIONS)]

    @tf.function  # type: ignore[untyped-decorator]
    def step() -> Any:
        return [tf.negative(each) for each in tensors]

    return step


def torch_step(rank: int, size: int, port: int) -> Callable[[], Any]:
    """DistributedDataParallel over gloo."""
    import torch

    torch.set_num_threads(2)
    model: Any = torch.nn.Linear(HIDDEN, HIDDEN, bias=False)
    if size > 1:
        address = f"tcp://127.0.0.1:{port}"
        torch.distributed.init_process_group("gloo", address, rank=rank, world_size=size)
        model = torch.nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=True)
    optimizer = torch.optim.SGD(model.parameters(), RATE)
    x = torch.from_numpy(data(BATCH, HIDDEN, rank))

    def step() -> Any:
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(x), x)
        loss.backward()
        optimizer.step()
        return loss.item()

    return step


def jax_step(rank: int, size: int, port: int) -> Callable[[], Any]:
    """A jitted step whose batch is divided among the processes, over JAX's collectives for CPUs (gloo)."""
    import jax
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    if size > 1:
        jax.config.update("jax_cpu_collectives_implementation", "gloo")
        jax.distributed.initialize(f"127.0.0.1:{port}", size, rank)
    mesh = Mesh(np.array(jax.devices()), ("rank",))
    batch, whole = (NamedSharding(mesh, PartitionSpec(*names)) for names in (("rank",), ()))
    x = jax.make_array_from_process_local_data(batch, data(BATCH, HIDDEN, rank))
    weights = jax.make_array_from_process_local_data(whole, data(HIDDEN, HIDDEN, 99) * 0.01)

    def loss(w: Any, x: Any) -> Any:
        return ((x @ w - x) ** 2).mean()

    def update(w: Any, x: Any) -> Any:
        value, gradient = jax.value_and_grad(loss)(w, x)
        return w - RATE * gradient, value

    jitted = jax.jit(update, donate_argnums=0, out_shardings=(whole, whole))

    def step() -> Any:
        nonlocal weights
        weights, value = jitted(weights, x)
        return float(value)

    return step


STEPS = {
    "plain": plain_step,
    "keras": keras_step,
    "deep": deep_step,
    "computation": computation_step,
    "wire": wire_step,
    "small": small_step,
    "unshared": unshared_step,
    "torch": torch_step,
    "jax": jax_step,
}


def main() -> None:
    program, rank, size = sys.argv[1], int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    step = STEPS[program](rank, size, int(os.environ["MASTER_PORT"]))
    share = OPERATIONS if program in ("small", "unshared") else 1
    for _ in range(3):
        step()

    def steps(count: int) -> list[float]:
        times = []
        for _ in range(count):
            begun = time.perf_counter()
            step()
            times.append((time.perf_counter() - begun) / share)
        return times

    serve({"steps": steps})
    leave()


if __name__ == "__main__":
    main()
