# SPDX-License-Identifier: Apache-2.0
"""A process of bench_svm.py, which trains the machine of examples/svm.py together with others."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import numpy as np

import rdmatensor
from member import serve

sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))
import svm


def main() -> None:
    role = svm.role_of(os.environ, None, None, None)
    port = int(role.root.rpartition(":")[2]) if role.rank == 0 else 0
    with (
        rdmatensor.Device(f"rank {role.rank}", port=port) as device,
        svm.join(device, role, "svm", 60.0) as group,
    ):

        def train(name: str, count: int, way: str) -> dict[str, float]:
            case = svm.case(name, count)
            group.barrier()  # which does not count: nobody trains yet
            used = time.process_time()
            fit = svm.fit(device, group, *case, way)
            cpu = group.all_reduce(np.array([time.process_time() - used]))
            seconds = group.all_reduce(np.array([fit.seconds]), op="max")
            return {
                "seconds": float(seconds[0]),
                "cpu": float(cpu[0]),
                "objective": fit.objective,
                "iterations": fit.iterations,
            }

        serve({"train": train})


if __name__ == "__main__":
    main()
