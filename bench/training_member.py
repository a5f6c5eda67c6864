# SPDX-License-Identifier: Apache-2.0
"""A process of bench_training.py: trains with one framework, alone or together with others.

The arguments are the program, and a port for JAX beside the one at which processes meet. It needs no package
of rdmatensor for the other frameworks.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from member import serve_steps, timed

BATCH, HIDDEN, RATE = 8, 2048, 0.01
LAYERS, WIDTH, DEEP_BATCH = 16, 256, 4096
OPERATIONS = 50
Step = Callable[[], Any]
Make = Callable[[int, int, int], Step]


def data(batch: int, width: int, rank: int) -> Any:
    return np.random.default_rng(rank).normal(size=(batch, width)).astype("f")


def joined(rank: int, size: int, port: int) -> Any:
    """rdmatensor.train, when all processes have joined, and this one's session."""
    import rdmatensor.train as rt

    return rt, rt.init(rank=rank, size=size, root=f"127.0.0.1:{port}")


def keras_step(layers: int, width: int, batch: int, shared: bool) -> Make:
    """One batch of Keras 3's fit, on TensorFlow; without rdmatensor if not shared."""

    def make(rank: int, size: int, port: int) -> Step:
        import keras

        keras.utils.set_random_seed(1)  # all begin with the same weights
        optimizer: Any = keras.optimizers.SGD(RATE)
        if shared:
            optimizer = joined(rank, size, port)[0].distribute(optimizer)
        parts = [keras.layers.Dense(width, use_bias=False) for _ in range(layers)]
        model = keras.Sequential([keras.Input((width,)), *parts])
        model.compile(optimizer, loss="mse", jit_compile=False)
        x = data(batch, width, rank)
        return lambda: model.train_on_batch(x, x)

    return make


def wire_step(rank: int, size: int, port: int) -> Step:
    """The all-reduces of the deep network, all at once."""
    import tensorflow as tf

    from rdmatensor.train.backend.tensorflow import operations

    _, run = joined(rank, size, port)
    tensors = [tf.Variable(tf.ones((WIDTH, WIDTH))) for _ in range(LAYERS)]

    @tf.function  # type: ignore[untyped-decorator]
    def step() -> Any:
        started = [
            operations.start(run.handle, "all_reduce", [each * 0.5], f"{i}", reduction="mean")
            for i, each in enumerate(tensors)
        ]
        return [tf.reduce_sum(each.finish()[0][0]) for each in started]

    return step  # type: ignore[no-any-return]


def small_step(shared: bool) -> Make:
    """50 all-reduces of 4 KB; if not shared, an operation of this process in the place of each."""

    def make(rank: int, size: int, port: int) -> Step:
        import tensorflow as tf

        tensors = [tf.ones(1024) for _ in range(OPERATIONS)]
        rt = joined(rank, size, port)[0] if shared else None

        @tf.function  # type: ignore[untyped-decorator]
        def step() -> Any:
            if rt is None:
                return [tf.negative(each) for each in tensors]
            return [rt.ops.all_reduce(each, "sum", name=f"{i}") for i, each in enumerate(tensors)]

        return step  # type: ignore[no-any-return]

    return make


def torch_step(rank: int, size: int, port: int) -> Step:
    """DistributedDataParallel over gloo."""
    import torch

    torch.set_num_threads(1)  # as launchers set it where processes share a host
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


def keras_torch_step(rank: int, size: int, port: int) -> Step:
    """One batch of Keras 3's fit, on PyTorch."""
    import torch

    os.environ["KERAS_BACKEND"] = "torch"
    torch.set_num_threads(1)  # as launchers set it where processes share a host
    return keras_step(1, HIDDEN, BATCH, shared=True)(rank, size, port)


def jax_rdmatensor_step(rank: int, size: int, port: int) -> Step:
    """The same as `jax_step` over rdmatensor."""
    import rdmatensor.jax

    rdmatensor.jax.use(timeout=100)
    return jax_step(rank, size, port, "mpi")


def jax_step(rank: int, size: int, port: int, implementation: str = "gloo") -> Step:
    """A jitted step whose batch is divided among the processes, over JAX's collectives for CPUs.

    Each process has a program of its own part, because XLA would make slower loops of the whole.
    """
    import jax
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    if size > 1:
        jax.config.update("jax_cpu_collectives_implementation", implementation)
        jax.distributed.initialize(f"127.0.0.1:{sys.argv[2]}", size, rank)
    mesh = Mesh(np.array(jax.devices()), ("rank",))
    batch, whole = (NamedSharding(mesh, PartitionSpec(*names)) for names in (("rank",), ()))
    x = jax.make_array_from_process_local_data(batch, data(BATCH, HIDDEN, rank))
    weights = jax.make_array_from_process_local_data(whole, data(HIDDEN, HIDDEN, 99) * 0.01)

    def loss(w: Any, x: Any) -> Any:
        return ((x @ w - x) ** 2).mean()

    def update(w: Any, x: Any) -> Any:
        value, gradient = jax.lax.pmean(jax.value_and_grad(loss)(w, x), "rank")
        return w - RATE * gradient, value

    parts = {"in_specs": (whole.spec, batch.spec), "out_specs": (whole.spec, whole.spec)}
    mapped = jax.shard_map(update, mesh=mesh, check_vma=False, **parts)
    jitted = jax.jit(mapped, donate_argnums=0)

    def step() -> Any:
        nonlocal weights
        weights, value = jitted(weights, x)
        return float(value)

    return step


STEPS: dict[str, Make] = {
    "plain": keras_step(1, HIDDEN, BATCH, shared=False),
    "keras": keras_step(1, HIDDEN, BATCH, shared=True),
    # Much computation for few bytes: sums and copies take cores, which no link hides.
    "deep": keras_step(LAYERS, WIDTH, DEEP_BATCH, shared=True),
    "computation": keras_step(LAYERS, WIDTH, DEEP_BATCH, shared=False),
    "wire": wire_step,
    "small": small_step(shared=True),
    "unshared": small_step(shared=False),
    "keras_torch": keras_torch_step,
    "torch": torch_step,
    "jax_rdmatensor": jax_rdmatensor_step,
    "jax": jax_step,
}


def make() -> Step:
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    step = STEPS[sys.argv[1]](rank, size, int(os.environ["MASTER_PORT"]))
    timed(step, 3)
    return step


if __name__ == "__main__":
    serve_steps(make)
