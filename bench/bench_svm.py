# SPDX-License-Identifier: Apache-2.0
"""What elimination of samples saves in examples/svm.py: four processes train with and without, in turns."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import click

from options import console, deliver, json_option, quick_option
from rdmatensor.bench import record

EXAMPLES = Path(__file__).parents[1] / "examples"
MEMBERS = 4
# Data sets and their samples. With fewer, the all-reduces of the iterations take most of the time.
CASES = {"moons": 20000, "circles": 16000, "classes": 16000}
WAYS = ("none", "lazy", "early")
TARGET = 1.6
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
            used = time.process_time()
            fit = svm.fit(device, group, *svm.case(name, count), way)
            found.append(
                {
                    "seconds": fit.seconds,
                    "cpu": time.process_time() - used,
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


@click.command(help=__doc__)
@quick_option("Train with a quarter of the samples.")
@click.option("--turns", default=3, show_default=True, help="Train each way so often.")
@click.option("--orders", hidden=True)
@json_option
def main(quick: bool, turns: int, orders: str | None, json_file: Path | None) -> None:
    if orders is not None:
        print(json.dumps(member(json.loads(orders))), flush=True)
        return
    run = record.Run("Support vector machine", record.Environment.here(transport="shm"), quick)
    began = time.monotonic()
    with console().status("training") as status:
        for name, most in CASES.items():
            status.update(name)
            count = most // 4 if quick else most
            answers = launched([(name, count, way) for _ in range(turns) for way in WAYS])
            right = libsvm(name, count)
            for number, way in enumerate(WAYS):
                own = answers[number :: len(WAYS)]
                seconds = [each["seconds"] for each in own]
                off = max(abs(each["objective"] / right - 1) for each in own)
                if off > 1e-3:
                    run.faults.append(f"{name}, {way}: the objective differs by {off:.1e}")
                run.results.append(
                    record.Result(
                        f"support vector machine, {MEMBERS} processes",
                        f"{name}, {count} samples",
                        f"elimination: {way}",
                        record.SECONDS,
                        seconds,
                        None,
                        seconds,
                        {
                            "iterations": own[0]["iterations"],
                            "off_libsvm": off,
                            "cpu_seconds_of_rank_0": min(each["cpu"] for each in own),
                        },
                        [],
                        f"elimination: {WAYS[0]}" if way != WAYS[0] else "",
                        TARGET if way == "early" else None,
                    )
                )
    run.finish(time.monotonic() - began)
    deliver(run, json_file)


if __name__ == "__main__":
    main()
