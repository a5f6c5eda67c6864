# SPDX-License-Identifier: Apache-2.0
"""One process of bench_jax.py, which runs programs of JAX on request, over one implementation."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any

import rdmatensor.jax
from member import serve_steps


def operation(kind: str) -> Callable[[Any], Any]:
    """The function that each process applies to its row."""
    import jax

    return {
        "psum": lambda v: jax.lax.psum(v, "x"),
        "all_gather": lambda v: jax.lax.all_gather(v, "x", axis=1, tiled=True),
        "psum_scatter": lambda v: jax.lax.psum_scatter(v, "x", scatter_dimension=1, tiled=True),
        "all_to_all": lambda v: jax.lax.all_to_all(v, "x", 1, 1, tiled=True),
        "ppermute": lambda v: jax.lax.ppermute(v, "x", [(0, 1), (1, 0)]),
    }[kind]


def main(implementation: str, coordinator: str) -> None:
    if implementation.startswith("rdmatensor"):
        rdmatensor.jax.use(timeout=100)
    import jax
    import numpy as np
    from jax.experimental import multihost_utils
    from jax.sharding import Mesh, NamedSharding
    from jax.sharding import PartitionSpec as P

    under_mpirun = "OMPI_COMM_WORLD_RANK" in os.environ
    names = (
        ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE") if under_mpirun else ("RANK", "WORLD_SIZE")
    )
    rank, size = (int(os.environ[name]) for name in names)
    if under_mpirun:
        jax.config.update("jax_cpu_collectives_implementation", "mpi")
    elif not implementation.startswith("rdmatensor"):
        jax.config.update("jax_cpu_collectives_implementation", implementation)
    # XLA lets only the thread that began it use OpenMPI.
    if under_mpirun or implementation == "rdmatensor, at once":
        jax.config.update("jax_cpu_enable_async_dispatch", False)
    jax.distributed.initialize(coordinator, size, rank)
    mesh = Mesh(np.array(jax.devices()), ("x",))

    def make(kind: str, nbytes: int, calls: int) -> Callable[[], object]:
        row = np.ones((1, max(nbytes // 4, 1)), np.float32)
        rows = jax.make_array_from_process_local_data(NamedSharding(mesh, P("x")), row)
        mapped = jax.shard_map(
            operation(kind), mesh=mesh, in_specs=P("x"), out_specs=P("x"), check_vma=False
        )
        function = jax.jit(mapped)

        def step() -> None:
            for _ in range(calls):
                function(rows).block_until_ready()

        return step

    serve_steps(
        make,
        before=lambda: multihost_utils.sync_global_devices("begin"),
        rank=rank if under_mpirun else "",
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
