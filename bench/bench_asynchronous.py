# SPDX-License-Identifier: Apache-2.0
"""Asynchronous training against synchronous, where one process is slow; and pulling against memcpy.

Processes of this machine train a network on scikit-learn's digits. A step takes 20 ms, and 40 ms in one of
them; most of it is slept. Measured is the time until the last process's own model knows 97 % of 360 digits
that nobody trained on. All ways have the same batch and the same learning rates. The rivals have the same
network, data, padding and slow process: torch DDP, PostLocalSGDOptimizer and hivemind, if --rival-python
has them.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import click
import numpy as np

from asynchronous_member import SYNCHRONOUS, WAYS
from members import Members, ask, started
from options import console, deliver, has_module, json_option, quick_option, rival_python_option
from rdmatensor import Device, Store, config, empty
from rdmatensor.bench import record
from rdmatensor.bench.turns import in_turns

MEMBER = Path(__file__).with_name("asynchronous_member.py")
RIVAL = Path(__file__).with_name("asynchronous_rival.py")
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
    members: int,
    ways: Sequence[str],
    seeds: int,
    rates: Sequence[float],
    rivals: Sequence[str],
    rival_python: str,
) -> list[record.Result]:
    """The times of all ways. Each seed is measured in all ways and rates before the next."""
    times: dict[tuple[float, str], list[float]] = {
        (rate, way): [] for rate in rates for way in (*ways, *rivals)
    }
    with ExitStack() as stack:
        processes = stack.enter_context(started(MEMBER, members, ONE_THREAD))
        others = processes
        if rivals:
            settings = {**ONE_THREAD, "GLOO_SOCKET_IFNAME": "lo"}
            others = stack.enter_context(started(RIVAL, members, settings, rival_python))
        for seed in range(seeds):
            for (rate, way), found in times.items():
                found.append(max(_run(others if way in rivals else processes, way, rate, seed)))
    return [
        record.Result(
            f"training, {members} processes, one at half speed",
            f"time to {TARGET:.0%} of digits, rate {rate:g}",
            way,
            record.SECONDS,
            found,
            parameters={"seeds": seeds, "rate": rate, "step_s": STEP, "slow_step_s": SLOW_STEP},
            rival=SYNCHRONOUS if way in WAYS else "",
            target=1.5 if way in WAYS else None,
        )
        for (rate, way), found in times.items()
    ]


def _run(processes: Members, way: str, rate: float, seed: int) -> list[float]:
    common: dict[str, Any] = {
        "way": way,
        "seed": seed,
        "rate": rate,
        "target": TARGET,
        "limit": LIMIT,
    }
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
@click.option("--seeds", type=int, help="Train from so many beginnings: 5, or 1 with --quick.")
@click.option(
    "--rate",
    "rates",
    multiple=True,
    type=click.FloatRange(0, min_open=True),
    default=(0.8,),
    show_default=True,
    help="Train with this learning rate. Repeatable.",
)
@click.option("--way", "ways", multiple=True, type=click.Choice(list(WAYS)), help="Repeatable.")
@quick_option("One seed.")
@rival_python_option
@json_option
def main(
    members: int,
    seeds: int | None,
    rates: tuple[float, ...],
    ways: tuple[str, ...],
    quick: bool,
    rival_python: str,
    json_file: Path | None,
) -> None:
    run = record.Run("Asynchronous training", record.Environment.here(transport="shm"), quick)
    began = time.monotonic()
    with console().status("measuring"):
        run.results += pulls(20 if quick else 100)
        rivals = [
            name
            for name, module in RIVALS.items()
            if all(has_module(rival_python, each) for each in (module, "sklearn"))
        ]
        run.missing += [
            record.Missing(
                name, "not installed", f"pip install {module} scikit-learn; --rival-python"
            )
            for name, module in RIVALS.items()
            if name not in rivals
        ]
        chosen = [SYNCHRONOUS, *(ways or WAYS)]
        seeds = seeds or (1 if quick else 5)
        trained = converge(members, chosen, seeds, rates, rivals, rival_python)
        run.results += trained
    run.finish(time.monotonic() - began)
    deliver(run, json_file)
    for result in trained:
        found = np.array(result.samples)
        spread = f"{found.mean():.1f} ± {found.std():.1f} s, {found.min():.1f} .. {found.max():.1f}"
        line = f"{result.case}, {result.way}: {spread} from {len(found)} beginnings"
        console().print(line, highlight=False)


if __name__ == "__main__":
    main()
