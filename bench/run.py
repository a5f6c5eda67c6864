# SPDX-License-Identifier: Apache-2.0
"""The whole set of benchmarks, one after the other, into one record and one page: `make bench`."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import click
from rich.console import Console

from rdmatensor.bench import record, report
from rdmatensor.bench.page import page

HERE = Path(__file__).resolve().parent


@dataclass(frozen=True)
class Stage:
    """One program that writes a record into the file named after its option --json. It gets `always`, or if
    that is empty --quick where the whole run is; it is ended after `patience_s` seconds."""

    name: str
    command: Sequence[str]
    always: Sequence[str] = ()
    patience_s: float = 900.0


def script(name: str) -> list[str]:
    return [sys.executable, str(HERE / name)]


# By what they take on two quiet cores: together a quarter of an hour.
STAGES = (
    Stage("micro", script("micro.py")),
    Stage("python", [sys.executable, "-m", "rdmatensor", "bench", "local"]),
    Stage("rivals", script("bench_rivals.py")),
    Stage("collectives", script("bench_group.py"), always=("--quick",)),
    Stage("tensorflow", script("bench_tensorflow.py"), always=("--quick",)),
    Stage("paper", script("paper.py"), always=("--quick",)),
    Stage("converge", script("converge.py"), always=("--quick",)),
)


def run_stage(stage: Stage, quick: bool, folder: Path) -> tuple[record.Run | None, str]:
    """The stage's record, None if it wrote none; and what went wrong, "" if nothing."""
    file = folder / f"{stage.name}.json"
    flags = stage.always or (("--quick",) if quick else ())
    command = [*stage.command, *flags, "--json", str(file)]
    fault = ""
    try:
        # Away from the sources: `python -m` would import those, which are not built.
        done = subprocess.run(command, cwd=folder, timeout=stage.patience_s)
        if done.returncode:
            fault = f"{stage.name} ended with status {done.returncode}"
    except subprocess.TimeoutExpired:
        fault = f"{stage.name} took longer than {stage.patience_s:.0f} s and was ended"
    if not file.exists():
        return None, fault or f"{stage.name} wrote no record"
    return record.Run.read(file), fault


def run_stages(
    stages: Sequence[Stage], quick: bool, console: Console
) -> tuple[list[record.Run], list[str]]:
    """All of them; one that fails does not keep the others from running."""
    runs, faults = [], []
    with tempfile.TemporaryDirectory(prefix="rdmatensor-bench-") as folder:
        for stage in stages:
            console.rule(stage.name)
            run, fault = run_stage(stage, quick, Path(folder))
            runs += [run] if run else []
            faults += [fault] if fault else []
    return runs, faults


@click.command(help=__doc__)
@click.option("--quick", is_flag=True, help="Fewer sizes: some five minutes less.")
@click.option("--only", multiple=True, type=click.Choice([stage.name for stage in STAGES]))
@click.option("--skip", multiple=True, type=click.Choice([stage.name for stage in STAGES]))
@click.option(
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("build/bench"),
    show_default=True,
    help="Gets results.json and results.html.",
)
def main(quick: bool, only: tuple[str, ...], skip: tuple[str, ...], out: Path) -> None:
    console = Console(width=None if sys.stdout.isatty() else 130)
    chosen = [each for each in STAGES if (not only or each.name in only) and each.name not in skip]
    if not chosen:
        raise click.UsageError("nothing is left to run")
    began = time.monotonic()
    runs, faults = run_stages(chosen, quick, console)
    if runs:
        whole = record.merged("All benchmarks", runs)
        whole.faults += faults
        out.mkdir(parents=True, exist_ok=True)
        whole.write(out / "results.json")
        (out / "results.html").write_text(page(runs))
        console.rule("targets")
        for line in report.missed(whole) or ["all that have one are met"]:
            console.print(line, highlight=False, markup=False)
        console.print(f"{time.monotonic() - began:.0f} s; {out}/results.json, {out}/results.html")
    for fault in faults:
        console.print(f"[red]{fault}[/]")
    sys.exit(1 if faults else 0)


if __name__ == "__main__":
    main()
