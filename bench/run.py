# SPDX-License-Identifier: Apache-2.0
"""Runs all benchmarks of `make bench`, and writes one record and one page."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import click
from rich.console import Console

import options
from rdmatensor.bench import record, report
from rdmatensor.bench.page import page

HERE = Path(__file__).resolve().parent


@dataclass(frozen=True)
class Stage:
    """A program that writes a record to the file after --json, and is killed after `patience_s` seconds.

    Its options are `always`; if that is empty, it gets --quick in a quick run. With `rivals`, it learns which
    Python has them.
    """

    name: str
    command: Sequence[str]
    always: Sequence[str] = ()
    rivals: bool = False
    patience_s: float = 900.0


def script(name: str) -> list[str]:
    return [sys.executable, str(HERE / name)]


QUICK = ("--quick",)
TRAINING = "training, 17 MB of gradients"
# On two idle cores, all stages take about half an hour, of which many sleep on emulated links.
STAGES = (
    Stage("micro", script("micro.py")),
    Stage("python", [sys.executable, "-m", "rdmatensor", "bench", "local"]),
    Stage("rivals", script("bench_rivals.py")),
    Stage("rivals-tcp", [*script("bench_rivals.py"), "--tcp"]),
    Stage("networks", script("bench_networks.py"), QUICK),
    Stage("groups", script("bench_group.py"), QUICK, rivals=True),
    Stage("groups-tcp", [*script("bench_group.py"), "--tcp"], QUICK, rivals=True),
    Stage("trees", script("bench_trees.py"), (*QUICK, "--turns", "1"), rivals=True),
    Stage("tensorflow", script("bench_tensorflow.py"), QUICK),
    Stage("tensorflow-tcp", [*script("bench_tensorflow.py"), "--veth"], QUICK),
    Stage(
        "tensorflow-gigabit",
        [*script("bench_tensorflow.py"), "--veth", "--rate", "1gbit"],
        QUICK,
    ),
    Stage("collectives", script("bench_collectives.py"), (*QUICK, "--workers", "2")),
    Stage(
        "collectives-gigabit",
        [*script("bench_collectives.py"), "--veth", "--rate", "1gbit", "--only", TRAINING],
        QUICK,
    ),
    Stage("embedding", script("bench_embedding.py"), QUICK),
    Stage("paper", script("paper.py"), QUICK),
    Stage("converge", script("converge.py"), QUICK),
    Stage("training", script("bench_training.py"), QUICK, rivals=True),
    Stage("sharded", script("bench_sharded.py"), QUICK),
    Stage("tables", script("bench_tables.py"), QUICK),
    Stage("split", script("bench_split.py"), QUICK),
    Stage("asynchronous", script("bench_asynchronous.py"), QUICK, rivals=True),
    Stage("svm", script("bench_svm.py"), (*QUICK, "--turns", "1")),
)


def run_stage(
    stage: Stage, quick: bool, folder: Path, rival_python: str
) -> tuple[record.Run | None, str]:
    """The stage's record, if it wrote one, and what went wrong; "" if nothing did."""
    file = folder / f"{stage.name}.json"
    flags = [*(stage.always or (QUICK if quick else ()))]
    if stage.rivals:
        flags += ["--rival-python", rival_python]
    command = [*stage.command, *flags, "--json", str(file)]
    fault = ""
    try:
        # `python -m` in the source folder would import the sources, which are not built.
        done = subprocess.run(command, cwd=folder, timeout=stage.patience_s)
        if done.returncode:
            fault = f"{stage.name} ended with status {done.returncode}"
    except subprocess.TimeoutExpired:
        fault = f"{stage.name} took longer than {stage.patience_s:.0f} s and was killed"
    if not file.exists():
        return None, fault or f"{stage.name} wrote no record"
    return record.Run.read(file), fault


def run_stages(
    stages: Sequence[Stage], quick: bool, console: Console, rival_python: str = sys.executable
) -> tuple[list[record.Run], list[str]]:
    """Run all stages, even if some fail."""
    runs, faults = [], []
    with tempfile.TemporaryDirectory(prefix="rdmatensor-bench-") as folder:
        for stage in stages:
            console.rule(stage.name)
            run, fault = run_stage(stage, quick, Path(folder), rival_python)
            runs += [run] if run else []
            faults += [fault] if fault else []
    return runs, faults


@click.command(help=__doc__)
@options.quick_option("Measure fewer sizes, which saves about five minutes.")
@options.only_option([stage.name for stage in STAGES])
@click.option(
    "--skip",
    multiple=True,
    type=click.Choice([stage.name for stage in STAGES]),
    help="Leave out this stage; repeatable.",
)
@click.option(
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("build/bench"),
    show_default=True,
    help="Write results.json and results.html into this folder.",
)
@options.rival_python_option
def main(
    quick: bool, only: tuple[str, ...], skip: tuple[str, ...], out: Path, rival_python: str
) -> None:
    console = options.console()
    chosen = [each for each in STAGES if (not only or each.name in only) and each.name not in skip]
    if not chosen:
        raise click.UsageError("no stage is left to run")
    if os.sep in rival_python:
        rival_python = str(Path(rival_python).absolute())  # stages run in another folder
    began = time.monotonic()
    runs, faults = run_stages(chosen, quick, console, rival_python)
    if runs:
        whole = record.merged("All benchmarks", runs)
        whole.faults += faults
        out.mkdir(parents=True, exist_ok=True)
        whole.write(out / "results.json")
        (out / "results.html").write_text(page(runs))
        console.rule("missed targets")
        for line in report.missed(whole) or ["none"]:
            console.print(line, highlight=False, markup=False)
        console.print(f"{time.monotonic() - began:.0f} s; {out}/results.json, {out}/results.html")
    for fault in faults:
        console.print(f"[red]{fault}[/]")
    sys.exit(1 if faults else 0)


if __name__ == "__main__":
    main()
