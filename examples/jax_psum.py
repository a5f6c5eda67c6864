# SPDX-License-Identifier: Apache-2.0
"""Trains a linear model in several processes with JAX on CPUs, over rdmatensor.

Start it by `rdmatensor launch --jax -n 2 jax_psum.py`. Each process has its own part of the data, and
gradients are averaged.
"""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P


def main() -> None:
    jax.distributed.initialize()  # `rdmatensor launch --jax` says where the others are
    mesh = jax.make_mesh((jax.process_count(),), ("data",))

    @jax.jit
    @partial(jax.shard_map, mesh=mesh, in_specs=(P(), P("data"), P("data")), out_specs=(P(), P()))
    def step(weights: jax.Array, x: jax.Array, y: jax.Array) -> tuple[jax.Array, jax.Array]:
        loss, gradient = jax.value_and_grad(lambda w: jnp.mean((x @ w - y) ** 2))(weights)
        return weights - 0.1 * jax.lax.pmean(gradient, "data"), jax.lax.pmean(loss, "data")

    numbers = np.random.default_rng(jax.process_index())
    x = numbers.normal(size=(64, 8)).astype(np.float32)
    y = x @ np.arange(8, dtype=np.float32)
    rows = NamedSharding(mesh, P("data"))
    data = [jax.make_array_from_process_local_data(rows, each) for each in (x, y)]
    weights = jnp.zeros(8)
    for number in range(100):
        weights, loss = step(weights, *data)
        if number % 25 == 0 and jax.process_index() == 0:
            print(f"step {number}: loss {loss:.4f}")
    if jax.process_index() == 0:
        print("weights", np.abs(np.round(np.asarray(weights), 2)))


if __name__ == "__main__":
    main()
