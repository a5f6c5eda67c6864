# SPDX-License-Identifier: Apache-2.0
"""Measures how much time examples/svm.py saves by eliminating samples.

Four processes train with elimination and without it, in turns.

Each way has two figures: the time until the slowest process ends, and the processor time of all processes.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
import numpy as np

from options import console, deliver, json_option, only_option, quick_option
from rdmatensor.bench import record

EXAMPLES = Path(__file__).parents[1] / "examples"
MEMBERS = 4
# Data sets and their samples. With fewer, each iteration's all-gather takes most of the time.
CASES = {"moons": 40000, "circles": 40000, "wide": 16000, "classes": 16000}
WAYS = ("none", "early")
TARGET = 1.6
SUITES = {
    "seconds": f"support vector machine, {MEMBERS} processes",
    "cpu": f"support vector machine, processor time of {MEMBERS} processes",
}
PATIENCE = 1500.0


def member(orders: list[Any]) -> list[dict[str, Any]]:
    """Runs the orders, which are a data set, a number of samples, and a way, and says what each took."""
    sys.path.insert(0, str(EXAMPLES))
    import svm

    import rdmatensor

    role = svm.role_of(os.environ, None, None, None)
    port = int(role.root.rpartition(":")[2]) if role.rank == 0 else 0
    found = []
    with (
        rdmatensor.Device(f"rank {role.rank}", port=port) as device,
        svm.join(device, role, "svm", 60.0) as group,
    ):
        for name, count, way in orders:
            case = svm.case(name, count)
            group.barrier()  # which does not count: nobody trains yet
            used = time.process_time()
            fit = svm.fit(device, group, *case, way)
            cpu = group.all_reduce(np.array([time.process_time() - used]))
            seconds = group.all_reduce(np.array([fit.seconds]), op="max")
            found.append(
                {
                    "seconds": float(seconds[0]),
                    "cpu": float(cpu[0]),
                    "objective": fit.objective,
                    "iterations": fit.iterations,
                }
            )
    return found


def libsvm(name: str, count: int) -> float:
    """The objective of scikit-learn's SVC."""
    sys.path.insert(0, str(EXAMPLES))
    import svm

    objective, _ = svm.reference(svm.case(name, count))
    return float(objective)


def launched(orders: list[Any]) -> list[dict[str, Any]]:
    """What rank 0 of several processes says about the orders."""
    command = [sys.executable, "-m", "rdmatensor", "launch", "-n", str(MEMBERS), __file__]
    done = subprocess.run(
        [*command, "--orders", json.dumps(orders)],
        env=os.environ | {"OPENBLAS_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        text=True,
        timeout=PATIENCE,
        check=True,
    )
    (line,) = [each for each in done.stdout.splitlines() if "[worker 0] [{" in each]
    answer: list[dict[str, Any]] = json.loads(line.partition("[worker 0] ")[2])
    return answer


def results(name: str, count: int, turns: int) -> tuple[list[record.Result], list[str]]:
    """Trains each way in turns. Returns what they took, and what is wrong with the objectives."""
    answers = launched([(name, count, way) for _ in range(turns) for way in WAYS])
    right = libsvm(name, count)
    found, faults = [], []
    for number, way in enumerate(WAYS):
        own = answers[number :: len(WAYS)]
        off = max(abs(each["objective"] / right - 1) for each in own)
        if off > 1e-3:
            faults.append(f"{name}, {way}: the objective differs by {off:.1e}")
        for figure, suite in SUITES.items():
            samples = [each[figure] for each in own]
            parameters: dict[str, record.Parameter] = {
                "iterations": own[0]["iterations"],
                "off_libsvm": off,
            }
            result = record.Result(
                suite,
                f"{name}, {count} samples",
                f"elimination: {way}",
                record.SECONDS,
                samples,
                turns=samples,
                parameters=parameters,
            )
            if way != WAYS[0]:
                result = replace(result, rival=f"elimination: {WAYS[0]}", target=TARGET)
            found.append(result)
    return found, faults


@click.command(help=__doc__)
@quick_option("Train with a quarter of the samples.")
@only_option(list(CASES))
@click.option("--turns", default=3, show_default=True, help="Train each way so often.")
@click.option("--orders", hidden=True)
@json_option
def main(
    quick: bool, only: tuple[str, ...], turns: int, orders: str | None, json_file: Path | None
) -> None:
    if orders is not None:
        print(json.dumps(member(json.loads(orders))), flush=True)
        return
    run = record.Run("Support vector machine", record.Environment.here(transport="shm"), quick)
    began = time.monotonic()
    with console().status("training") as status:
        for name, most in CASES.items():
            if only and name not in only:
                continue
            status.update(name)
            found, faults = results(name, most // 4 if quick else most, turns)
            run.results += found
            run.faults += faults
    run.finish(time.monotonic() - began)
    deliver(run, json_file)


if __name__ == "__main__":
    main()
