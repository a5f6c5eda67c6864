# SPDX-License-Identifier: Apache-2.0
"""Runs the benchmarks, each in a process of its own, and writes one record."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import click
from rich.console import Console

import record
import report

HERE = Path(__file__).resolve().parent


class Part(NamedTuple):
    """A program, with its options; with --quick, unless `quick` says that it takes too long without."""

    program: str
    options: Sequence[str] = ()
    quick: bool = False
    patience_s: float = 900.0


PARTS = {
    "micro": Part("bench_micro"),
    "api": Part("bench_api"),
    "rivals": Part("bench_rivals"),
    "rivals-tcp": Part("bench_rivals", ["--tcp"]),
    "networks": Part("bench_networks", quick=True),
    "verbs": Part("bench_verbs", quick=True),
    "groups": Part("bench_group", quick=True),
    "groups-tcp": Part("bench_group", ["--tcp"], quick=True),
    "torch": Part("bench_torch", quick=True),
    "torch-tcp": Part("bench_torch", ["--tcp"], quick=True),
    "jax": Part("bench_jax", quick=True),
    "trees": Part("bench_trees", ["--turns", "1"], quick=True),
    "tensorflow": Part("bench_tensorflow", quick=True),
    "tensorflow-tcp": Part("bench_tensorflow", ["--veth"], quick=True),
    "tensorflow-gigabit": Part("bench_tensorflow", ["--veth", "--rate", "1gbit"], quick=True),
    "collectives": Part("bench_collectives", ["--workers", "2"], quick=True),
    "embedding": Part("bench_embedding", quick=True),
    "paper": Part("bench_paper", quick=True),
    "converge": Part("bench_converge", quick=True),
    "training": Part("bench_training", quick=True),
    "sharded": Part("bench_sharded", quick=True),
    "tables": Part("bench_tables", quick=True),
    "split": Part("bench_split", quick=True),
    "asynchronous": Part("bench_asynchronous", quick=True),
    "svm": Part("bench_svm", ["--turns", "1"], quick=True),
}
# It takes half an hour in an emulator.
_ASKED_FOR = ("verbs",)


def run_part(
    name: str, part: Part, quick: bool, folder: Path, rival_python: str
) -> tuple[record.Run | None, str]:
    """The part's record, if it wrote one, and what went wrong; "" if nothing did."""
    file, fault = folder / f"{name}.json", ""
    words = [*part.options, "--rival-python", rival_python, "--json", str(file)]
    words += ["--quick"] if quick or part.quick else []
    command = [sys.executable, str(HERE / f"{part.program}.py"), *words]
    try:
        done = subprocess.run(command, cwd=folder, timeout=part.patience_s)
        if done.returncode:
            fault = f"{name} ended with status {done.returncode}"
    except subprocess.TimeoutExpired:
        fault = f"{name} took longer than {part.patience_s:.0f} s and was killed"
    if not file.exists():
        return None, fault or f"{name} wrote no record"
    return record.Run.read(file), fault


def run_parts(
    parts: Mapping[str, Part], quick: bool, console: Console, rival_python: str = sys.executable
) -> tuple[list[record.Run], list[str]]:
    """Run all parts, even if some fail."""
    runs, faults = [], []
    with tempfile.TemporaryDirectory(prefix="rdt-bench-") as folder:
        for name, part in parts.items():
            console.rule(name)
            run, fault = run_part(name, part, quick, Path(folder), rival_python)
            runs += [run] if run else []
            faults += [fault] if fault else []
    return runs, faults


@click.command(help=__doc__)
@click.argument("names", nargs=-1)
@click.option("--quick", is_flag=True, help="Measure less in every part.")
@click.option("--rival-python", default=sys.executable, help="A Python that has the rivals.")
@click.option("--out", type=click.Path(path_type=Path), default=Path("build/bench"))
@click.option("--compare", is_flag=True, help="NAMES are records; show them side by side.")
def main(names: tuple[str, ...], quick: bool, rival_python: str, out: Path, compare: bool) -> None:
    console = Console(width=None if sys.stdout.isatty() else 150)
    if compare:
        runs = record.named_apart({name: record.Run.read(Path(name)) for name in names})
        report.show(console, record.merged("Benchmarks", runs))
        return
    if unknown := set(names) - set(PARTS):
        raise click.UsageError(f"{', '.join(sorted(unknown))}: not one of {', '.join(PARTS)}")
    chosen = names or [name for name in PARTS if name not in _ASKED_FOR]
    if os.sep in rival_python:
        rival_python = str(Path(rival_python).absolute())  # parts run in another folder
    began = time.monotonic()
    parts = {name: PARTS[name] for name in chosen}
    runs, faults = run_parts(parts, quick, console, rival_python)
    if runs:
        whole = record.merged("All benchmarks", runs)
        whole.faults += faults
        out.mkdir(parents=True, exist_ok=True)
        whole.write(out / "results.json")
        console.rule("missed targets")
        for line in report.missed(whole) or ["none"]:
            console.print(line, highlight=False, markup=False)
        console.print(f"{time.monotonic() - began:.0f} s; {out}/results.json")
    for fault in faults:
        console.print(f"[red]{fault}[/]")
    sys.exit(1 if faults else 0)


if __name__ == "__main__":
    main()
