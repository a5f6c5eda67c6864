# SPDX-License-Identifier: Apache-2.0
"""Asynchronous training against synchronous, where one process is slow; and pulling against memcpy.

Processes of this machine train a network on scikit-learn's digits. A step takes 20 ms, and 40 ms in one of
them; most of it is slept. Measured is the time until the last process's own model knows 97 % of 360 digits
that nobody trained on. All ways have the same learning rate and batch.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import click
import numpy as np

from asynchronous_member import RATE, SYNCHRONOUS, WAYS
from members import Members, ask, started
from options import console, deliver, json_option, quick_option
from rdmatensor import Device, Store, config, empty
from rdmatensor.bench import record
from rdmatensor.bench.turns import in_turns

MEMBER = Path(__file__).with_name("asynchronous_member.py")
TARGET, STEP, SLOW_STEP, LIMIT = 0.97, 0.02, 0.04, 60.0
PULLED = 17 << 20


def converge(members: int, ways: list[str], seeds: int) -> list[record.Result]:
    """The times of all ways. Each seed is measured in all ways before the next."""
    times: dict[str, list[float]] = {way: [] for way in ways}
    with started(MEMBER, members, {"OPENBLAS_NUM_THREADS": "1"}) as processes:
        for seed in range(seeds):
            for way in ways:
                times[way].append(max(_run(processes, way, seed)))
    return [
        record.Result(
            f"training, {members} processes, one at half speed",
            f"time to {TARGET:.0%} of digits",
            way,
            record.SECONDS,
            found,
            parameters={"seeds": seeds, "rate": RATE, "step_s": STEP, "slow_step_s": SLOW_STEP},
            rival="" if way == SYNCHRONOUS else SYNCHRONOUS,
            target=None if way == SYNCHRONOUS else 1.5,
        )
        for way, found in times.items()
    ]


def _run(processes: Members, way: str, seed: int) -> list[float]:
    common: dict[str, Any] = {"way": way, "seed": seed, "target": TARGET, "limit": LIMIT}
    pads = [STEP] * (len(processes) - 1) + [SLOW_STEP]
    return ask(processes, [{**common, "pad": pad} for pad in pads])


def pulls(turns: int) -> list[record.Result]:
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

            def pull() -> list[float]:
                began = time.perf_counter()
                other.pull(0, pulled)
                return [PULLED / (time.perf_counter() - began)]

            def copy() -> list[float]:
                began = time.perf_counter()
                np.copyto(copied, source)
                return [PULLED / (time.perf_counter() - began)]

            found = in_turns({"memcpy": copy, "pull": pull}, turns)
            assert (pulled == values).all()
    return [
        record.Result(
            "stores, shared memory",
            "read parameters",
            way,
            record.BYTES_PER_SECOND,
            samples.all,
            PULLED,
            samples.turns,
            rival="memcpy" if way == "pull" else "",
            target=0.9 if way == "pull" else None,
        )
        for way, samples in found.items()
    ]


@click.command(help=__doc__)
@click.option("--members", default=4, show_default=True, help="Start so many processes.")
@click.option("--seeds", default=5, show_default=True, help="Train from so many beginnings.")
@click.option("--way", "ways", multiple=True, type=click.Choice(list(WAYS)), help="Repeatable.")
@quick_option("One seed.")
@json_option
def main(
    members: int, seeds: int, ways: tuple[str, ...], quick: bool, json_file: Path | None
) -> None:
    run = record.Run("Asynchronous training", record.Environment.here(transport="shm"), quick)
    began = time.monotonic()
    with console().status("measuring"):
        run.results += pulls(20 if quick else 100)
        run.results += converge(members, [SYNCHRONOUS, *(ways or WAYS)], 1 if quick else seeds)
    run.finish(time.monotonic() - began)
    deliver(run, json_file)


if __name__ == "__main__":
    main()
