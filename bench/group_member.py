# SPDX-License-Identifier: Apache-2.0
"""One process of bench_group.py and bench_trees.py, which runs the all-reduces of one library on request."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from member import serve_steps

Array = np.ndarray[Any, np.dtype[np.float32]]
# A call that sums the members' arrays in place, and this one's.
Prepared = tuple[Callable[[], object], Array]
PATIENCE = 100.0
ALGORITHMS = ("trees", "ring", "direct")


class OpenMpi:
    """The upper-case methods of mpi4py, which work on buffers of a known type."""

    offer = ""

    def __init__(self, rank: int, size: int) -> None:
        from mpi4py import MPI

        self._mpi = MPI
        self.rank = MPI.COMM_WORLD.Get_rank()

    def join(self, offer: str) -> None:
        self._mpi.COMM_WORLD.Barrier()

    def prepare(self, case: str, length: int) -> Prepared:
        mpi, all_reduce = self._mpi, self._mpi.COMM_WORLD.Allreduce
        data = np.zeros(length, np.float32)
        return (lambda: all_reduce(mpi.IN_PLACE, [data, mpi.FLOAT], mpi.SUM)), data

    def close(self) -> None:
        self._mpi.Finalize()


class Gloo:
    """torch.distributed on CPUs."""

    def __init__(self, rank: int, size: int) -> None:
        import torch.distributed

        self._torch = torch
        self.rank, self._size = rank, size
        self.offer = f"file://{os.environ['BENCH_ADDRESS']}meeting"

    def join(self, offer: str) -> None:
        self._torch.distributed.init_process_group(
            "gloo", offer, rank=self.rank, world_size=self._size
        )

    def prepare(self, case: str, length: int) -> Prepared:
        data, all_reduce = np.zeros(length, np.float32), self._torch.distributed.all_reduce
        tensor = self._torch.from_numpy(data)
        return (lambda: all_reduce(tensor)), data

    def close(self) -> None:
        self._torch.distributed.destroy_process_group()


class Ours:
    """rdmatensor.Group, on those arrays of numpy that are called plain, else on registered ones.

    A case may name an algorithm. The links are in the file BENCH_TOPOLOGY, if that is set.
    """

    def __init__(self, rank: int, size: int) -> None:
        import rdmatensor

        self.rank, self._size = rank, size
        self._device = rdmatensor.Device()
        self.offer = self._device.address

    def join(self, offer: str) -> None:
        from rdmatensor import Group
        from rdmatensor.topology.agree import use

        self._group = Group(
            self._device, self.rank, self._size, offer, name="bench", timeout=PATIENCE
        )
        if file := os.environ.get("BENCH_TOPOLOGY"):
            use(self._group, file, ("all_reduce",), timeout=PATIENCE)

    def prepare(self, case: str, length: int) -> Prepared:
        make = np.zeros if case == "plain" else self._group.empty
        data, all_reduce = make((length,), np.float32), self._group.all_reduce
        named: Any = {"algorithm": case, "timeout": PATIENCE} if case in ALGORITHMS else {}
        return (lambda: all_reduce(data, data, **named)), data

    def close(self) -> None:
        self._group.close()
        self._device.close()


LIBRARIES: dict[str, Any] = {"rdmatensor": Ours, "gloo": Gloo, "OpenMPI": OpenMpi}


def pattern(rank: int, count: int) -> Array:
    """Integers whose sums are exact in any order; they repeat after 1009 elements."""
    return np.resize(((np.arange(1009) * 7 + rank * 31) % 1009).astype(np.float32), count)


def main(name: str, rank: int, size: int) -> None:
    library = LIBRARIES[name](rank, size)

    def make(case: str, nbytes: int, calls: int) -> Callable[[], object]:
        """A step of `calls` calls back to back, whose sum has been checked."""
        call, data = library.prepare(case, nbytes // 4)
        data[:] = pattern(library.rank, nbytes // 4)
        call()
        right = sum(pattern(rank, nbytes // 4) for rank in range(size))
        if not np.array_equal(data, right):
            raise SystemExit(f"bench_group: the sum of {nbytes} bytes is wrong ({case})")
        data[:] = 0  # sums in place stay finite

        def step() -> None:
            for _ in range(calls):
                call()

        return step

    serve_steps(
        make,
        rank=library.rank if name == "OpenMPI" else "",
        close=library.close,
        offer=lambda: (library.rank, library.offer),
        join=library.join,
    )


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
