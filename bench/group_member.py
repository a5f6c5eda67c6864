# SPDX-License-Identifier: Apache-2.0
"""One process of bench_group.py and bench_trees.py, which runs the all-reduces of one library on request."""

from __future__ import annotations

import os
import resource
import sys
from collections.abc import Callable
from time import perf_counter, process_time
from typing import Any, Protocol

import numpy as np

from line import serve

Array = np.ndarray[Any, np.dtype[np.float32]]
Call = Callable[[], object]
PATIENCE = 100.0
ALGORITHMS = ("trees", "ring", "direct")


class Library(Protocol):
    rank: int
    offer: str  # join() of all members gets rank 0's

    def join(self, offer: str) -> None: ...

    def prepare(self, case: str, data: Array, in_place: bool) -> tuple[Call, Array, Array]:
        """A call that sums the members' `data`, and the arrays of its input and its result."""

    def close(self) -> None: ...


class OpenMpi:
    """The upper-case methods of mpi4py, which work on buffers of a known type."""

    offer = ""

    def __init__(self, rank: int, size: int) -> None:
        from mpi4py import MPI

        self._mpi = MPI
        self.rank = MPI.COMM_WORLD.Get_rank()

    def join(self, offer: str) -> None:
        self._mpi.COMM_WORLD.Barrier()

    def prepare(self, case: str, data: Array, in_place: bool) -> tuple[Call, Array, Array]:
        mpi, all_reduce = self._mpi, self._mpi.COMM_WORLD.Allreduce
        source = data.copy()
        result = source if in_place else data.copy()
        send = mpi.IN_PLACE if in_place else [source, mpi.FLOAT]
        receive = [result, mpi.FLOAT]
        return (lambda: all_reduce(send, receive, mpi.SUM)), source, result

    def close(self) -> None:
        self._mpi.Finalize()


class Gloo:
    """torch.distributed on CPUs, whose all_reduce only works in place."""

    def __init__(self, rank: int, size: int) -> None:
        import torch.distributed

        self._torch = torch
        self.rank, self._size = rank, size
        self.offer = f"file://{os.environ['BENCH_ADDRESS']}meeting"

    def join(self, offer: str) -> None:
        self._torch.distributed.init_process_group(
            "gloo", offer, rank=self.rank, world_size=self._size
        )

    def prepare(self, case: str, data: Array, in_place: bool) -> tuple[Call, Array, Array]:
        source, all_reduce = data.copy(), self._torch.distributed.all_reduce
        tensor = self._torch.from_numpy(source)
        return (lambda: all_reduce(tensor)), source, source

    def close(self) -> None:
        self._torch.distributed.destroy_process_group()


class Ours:
    """rdmatensor.Group, on those arrays of numpy that are called plain, else on registered ones.

    A case may name an algorithm. The links are in the file BENCH_TOPOLOGY, if that is set.
    """

    def __init__(self, rank: int, size: int) -> None:
        import rdmatensor

        self._rdmatensor = rdmatensor
        self.rank, self._size = rank, size
        self._device = rdmatensor.Device()
        self.offer = self._device.address

    def join(self, offer: str) -> None:
        self._group = self._rdmatensor.Group(
            self._device, self.rank, self._size, offer, name="bench", timeout=PATIENCE
        )
        if file := os.environ.get("BENCH_TOPOLOGY"):
            from rdmatensor.topology.agree import use

            use(self._group, file, ("all_reduce",), timeout=PATIENCE)

    def prepare(self, case: str, data: Array, in_place: bool) -> tuple[Call, Array, Array]:
        make = np.zeros if case == "plain" else self._group.empty
        source = make(data.shape, data.dtype)
        result = source if in_place else make(data.shape, data.dtype)
        all_reduce = self._group.all_reduce
        if case in ALGORITHMS:
            named: Any = {"algorithm": case, "timeout": PATIENCE}
            return (lambda: all_reduce(source, result, **named)), source, result
        return (lambda: all_reduce(source, result)), source, result

    def close(self) -> None:
        self._group.close()
        self._device.close()


LIBRARIES: dict[str, Callable[[int, int], Library]] = {
    "rdmatensor": Ours,
    "gloo": Gloo,
    "OpenMPI": OpenMpi,
}


def pattern(rank: int, count: int) -> Array:
    """Integers whose sums are exact in any order; they repeat after 1009 elements."""
    return np.resize(((np.arange(1009) * 7 + rank * 31) % 1009).astype(np.float32), count)


class Prepared:
    """The call of each case and size, which is prepared once, so that memory is registered once."""

    def __init__(self, library: Library, size: int) -> None:
        self._library = library
        self._size = size
        self._calls: dict[tuple[str, int, bool], tuple[Call, Array, Array]] = {}

    def measure(
        self, case: str, nbytes: int, in_place: bool, samples: int, calls: int
    ) -> tuple[list[float], tuple[float, int]]:
        """Samples of the time of a call, each the mean of `calls` calls back to back.

        Also the processor time of all calls, and the peak of resident bytes.
        """
        call, source, result = self._take(case, nbytes, in_place)
        source[:] = pattern(self._library.rank, nbytes // 4)
        call()
        if not np.array_equal(
            result, sum(pattern(rank, nbytes // 4) for rank in range(self._size))
        ):
            raise SystemExit(f"bench_group: the sum of {nbytes} bytes is wrong ({case})")
        source[:] = 0  # sums in place stay finite
        times = []
        before = process_time()
        for turn in range(samples + 1):
            begin = perf_counter()
            for _ in range(calls):
                call()
            if turn:  # the first one warms the caches
                times.append((perf_counter() - begin) / calls)
        peak_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        return times, (process_time() - before, peak_bytes)

    def _take(self, case: str, nbytes: int, in_place: bool) -> tuple[Call, Array, Array]:
        key = case, nbytes, in_place
        if key not in self._calls:
            self._calls[key] = self._library.prepare(
                case, np.zeros(nbytes // 4, dtype=np.float32), in_place
            )
        return self._calls[key]


def main(name: str, rank: int, size: int) -> None:
    library = LIBRARIES[name](rank, size)
    serve(
        {
            "offer": lambda: (library.rank, library.offer),
            "join": library.join,
            "measure": Prepared(library, size).measure,
        },
        library.rank if name == "OpenMPI" else "",
    )
    library.close()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
