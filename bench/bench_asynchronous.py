# SPDX-License-Identifier: Apache-2.0
"""Asynchronous training against synchronous, where one process is slow; and pulling against memcpy.

Processes of this machine train a network on scikit-learn's digits. A step takes 20 ms, and 40 ms in one of
them; most of it is slept. Measured is the time until the last process's own model knows 97 % of 360 digits
that nobody trained on. All ways have the same batch and the same learning rates. The rivals have the same
network, data, padding and slow process: torch DDP, PostLocalSGDOptimizer and hivemind, if --rival-python
has them.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from asynchronous_member import SYNCHRONOUS, WAYS
from harness import Bench, main
from member import timed
from rdmatensor import Device, Store, config, empty
from record import BYTES_PER_SECOND
from team import Team

# The ways of asynchronous_rival.py, and what each of them needs.
RIVALS = {
    "torch DDP, gloo": "torch",
    "torch PostLocalSGDOptimizer, gloo": "torch",
    "hivemind": "hivemind",
}
ONE_THREAD = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
TARGET, STEP, SLOW_STEP, LIMIT = 0.97, 0.02, 0.04, 60.0
PULLED = 17 << 20


def converge(
    bench: Bench, size: int, ways: Sequence[str], seeds: int, rates: Sequence[float]
) -> None:
    """The times of all ways. Each seed is measured in all ways and rates before the next."""
    here = [each for each, module in RIVALS.items() if bench.has(each, module)]
    if not bench.has("the rivals' data", "sklearn", "pip install scikit-learn"):
        here = []
    times: dict[tuple[float, str], list[float]] = {
        (rate, way): [] for rate in rates for way in (*ways, *here)
    }
    pads = [STEP] * (size - 1) + [SLOW_STEP]
    with Team() as team:
        processes = team.members("asynchronous_member", size, ONE_THREAD)
        others = processes
        if here:
            settings = {**ONE_THREAD, "GLOO_SOCKET_IFNAME": "lo"}
            others = team.members("asynchronous_rival", size, settings, bench.rival_python)
        for seed in range(seeds):
            for (rate, way), found in times.items():
                common = {"way": way, "seed": seed, "rate": rate, "target": TARGET, "limit": LIMIT}
                several = others if way in here else processes
                found.append(max(several.ask("train", 300.0, pads=pads, **common)))
    for (rate, way), found in times.items():
        bench.add(
            f"training, {size} processes, one at half speed",
            f"time to {TARGET:.0%} of digits, rate {rate:g}",
            *(way, found),
            rival=(SYNCHRONOUS, 1.5) if way in WAYS else ("", None),
        )


def pulls(bench: Bench) -> None:
    """Pulling of 17 MiB from another device over shared memory, and memcpy of as much."""
    config.set("TRANSPORTS", "shm")
    with Device("owner") as owner, Device("reader") as reader:
        values = np.random.default_rng(1).integers(0, 255, PULLED, np.uint8)
        source = empty(PULLED)
        source[:] = values
        with Store(owner, 0, 2, PULLED) as mine, Store(reader, 1, 2, PULLED) as other:
            other.connect(0, owner.address)
            mine.publish(values)
            pulled, copied = np.zeros_like(values), np.zeros_like(values)
            calls = {
                "memcpy": lambda: np.copyto(copied, source),
                "pull": lambda: other.pull(0, pulled),
            }
            bench.compare(
                *("stores, shared memory", "read parameters"),
                {
                    way: lambda call=call: [PULLED / timed(call, 1)[0]]
                    for way, call in calls.items()
                },
                20 if bench.quick else 100,
                rivals={"pull": ("memcpy", 0.9)},
                unit=BYTES_PER_SECOND,
                nbytes=PULLED,
            )
            assert (pulled == values).all()


def measure(
    bench: Bench,
    members: int = 4,
    seeds: int = 0,
    rate: tuple[float, ...] = (0.8,),
    way: tuple[str, ...] = (),
) -> None:
    pulls(bench)
    chosen = [SYNCHRONOUS, *(way or WAYS)]
    converge(bench, members, chosen, seeds or (1 if bench.quick else 5), rate)


if __name__ == "__main__":
    main(measure)
