# SPDX-License-Identifier: Apache-2.0
"""The C interface on shared memory, against UCX and memcpy, in turns."""

from __future__ import annotations

import tempfile
from pathlib import Path

import rivals
from harness import GB, KB, MB, Bench, Way, main
from programs import build, first_line, run, started
from record import BYTES_PER_SECOND, SECONDS

SIZES = (8, 64, 512, 4 * KB, 32 * KB, 256 * KB, 2 * MB, 16 * MB, 128 * MB, GB)
QUICK_SIZES = (8, 4 * KB, 64 * KB, MB, 16 * MB)
LATENCY_UP_TO, BANDWIDTH_FROM = 256 * KB, 4 * KB
DEPTH = 32
ENVIRONMENT = {"RDMATENSOR_TRANSPORTS": "shm", "RDMATENSOR_LOG_LEVEL": "error"}
OURS, UCX, COPY = "rdmatensor", "UCX", "memcpy"
# Our tests, and the corresponding ones of UCX.
LATENCIES = {
    "write latency": ("write_lat", "ucp_put_lat"),
    "write, until complete": ("write", ""),
    "read latency": ("read_lat", ""),
}
BANDWIDTHS = {
    "write bandwidth": ("write_bw", "ucp_put_bw"),
    "read bandwidth": ("read_bw", "ucp_get"),
}


class Micro:
    """Runs the cases with the program `micro`."""

    def __init__(self, bench: Bench, program: Path) -> None:
        self._bench, self._program, self._has_ucx = bench, program, rivals.has_ucx(bench)

    def size(self, nbytes: int) -> None:
        """All cases of one size."""
        with started([self._program, "serve", nbytes], ENVIRONMENT) as server:
            address = first_line(server)
            if nbytes <= LATENCY_UP_TO:
                # One look at the clock takes as long as a write, so a sample covers many writes.
                each = 100 if nbytes <= 4 * KB else 10
                for name, tests in LATENCIES.items():
                    target = 1.0 if nbytes == 8 else None
                    self._compare(name, *tests, address, nbytes, (200, 1, each), SECONDS, target)
            if nbytes >= BANDWIDTH_FROM:
                shape = (5 if nbytes < GB else 2, DEPTH, max(1, min(2000, 64 * MB // nbytes)))
                for name, tests in BANDWIDTHS.items():
                    self._compare(name, *tests, address, nbytes, shape, BYTES_PER_SECOND, 1.0)

    def _compare(
        self,
        name: str,
        test: str,
        ucx: str,
        address: str,
        nbytes: int,
        shape: tuple[int, int, int],
        unit: str,
        target: float | None,
    ) -> None:
        samples, _, each = shape

        def ours(*words: object) -> list[float]:
            lines = run([self._program, *words], ENVIRONMENT).split()
            return [float(line) * (1e-6 if unit == SECONDS else 1e6) for line in lines]

        def rival() -> list[float]:
            figures = rivals.ucx(ucx, nbytes, samples * each, DEPTH)
            return [figures.seconds if unit == SECONDS else figures.bytes_per_second]

        def copy() -> list[float]:
            times = run([self._program, "copy", "-", nbytes, samples, 1, each]).split()
            return [nbytes / float(microseconds) * 1e6 for microseconds in times]

        ways: dict[str, Way] = {OURS: lambda: ours(test, address, nbytes, *shape)}
        if ucx and self._has_ucx:
            ways[UCX] = rival
        if unit == BYTES_PER_SECOND:
            ways[COPY] = copy
        self._bench.compare(
            *("micro, C", name, ways, 3 if self._bench.quick else 5),
            rivals={OURS: (UCX, target)},
            unit=unit,
            nbytes=nbytes,
        )


def measure(bench: Bench) -> None:
    with tempfile.TemporaryDirectory() as folder:
        micro = Micro(bench, build(Path(folder)) / "micro")
        for nbytes in QUICK_SIZES if bench.quick else SIZES:
            micro.size(nbytes)


if __name__ == "__main__":
    main(measure)
