# SPDX-License-Identifier: Apache-2.0
"""One process of bench_torch.py under mpirun, which runs the same operations by mpi4py."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from mpi4py import MPI

from member import serve_steps


def operation(kind: str, count: int) -> Callable[[], object]:
    """A call of an operation whose array of this process has `count` elements."""
    world, numbers = MPI.COMM_WORLD, MPI.FLOAT
    rank, size = world.Get_rank(), world.Get_size()
    one = np.ones(count, np.float32)
    if kind == "all_reduce":
        return lambda: world.Allreduce(MPI.IN_PLACE, [one, numbers], MPI.MAX)
    if kind == "broadcast":
        return lambda: world.Bcast([one, numbers], 0)
    if kind == "all_gather":
        every = np.empty(size * count, np.float32)
        return lambda: world.Allgather([one, numbers], [every, numbers])
    whole = np.ones(size * max(count // size, 1), np.float32)
    if kind == "reduce_scatter":
        part = np.empty(len(whole) // size, np.float32)
        return lambda: world.Reduce_scatter_block([whole, numbers], [part, numbers], MPI.SUM)
    if kind == "all_to_all":
        result = np.empty(len(whole), np.float32)
        return lambda: world.Alltoall([whole, numbers], [result, numbers])

    def there_and_back() -> None:
        """Send to the other process of the pair, and receive what it sends back."""
        peer = rank ^ 1
        if peer == size:
            return
        if rank % 2:
            world.Recv([one, numbers], peer)
            world.Send([one, numbers], peer)
        else:
            world.Send([one, numbers], peer)
            world.Recv([one, numbers], peer)

    return there_and_back


def main() -> None:
    def make(kind: str, nbytes: int, calls: int) -> Callable[[], object]:
        call = operation(kind, max(nbytes // 4, 1))

        def step() -> None:
            for _ in range(calls):
                call()

        return step

    serve_steps(make, MPI.COMM_WORLD.Barrier, MPI.COMM_WORLD.Get_rank(), MPI.Finalize)


if __name__ == "__main__":
    main()
