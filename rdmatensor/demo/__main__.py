# SPDX-License-Identifier: Apache-2.0
"""The command line of the demo: it trains over each protocol, checks the outcome and prints a table."""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from rdmatensor.bench.record import Environment
from rdmatensor.bench.turns import Distribution
from rdmatensor.demo.cluster import Options, Outcome, run
from rdmatensor.demo.launch import TaskFailed, terminate_like_interrupt
from rdmatensor.demo.paths import PATHS, STOCK
from rdmatensor.demo.settings import MINIMUM_ACCURACY, WARM_UP_STEPS, model_bytes
from rdmatensor.units import duration, size

PROTOCOLS = (STOCK, "grpc+rdma")


def faults(outcome: Outcome, options: Options) -> list[str]:
    """Describes what is wrong with a run. Empty if nothing is."""
    found = []
    if outcome.accuracy < MINIMUM_ACCURACY:
        found.append(
            f"{outcome.protocol}: test accuracy {outcome.accuracy:.3f} is below {MINIMUM_ACCURACY}"
        )
    if outcome.paths is None:
        return found
    found += [f"{outcome.protocol}: {fault}" for fault in outcome.paths.avoidable()]
    updates = (options.steps + WARM_UP_STEPS) * options.workers
    # Every update moves the variables to a worker, and gradients of the same size back.
    needed = 2 * updates * model_bytes(options.hidden)
    if outcome.paths.pushed_bytes() < needed:
        found.append(
            f"{outcome.protocol}: only {size(outcome.paths.pushed_bytes())} were pushed, "
            f"but variables and gradients are {size(needed)}"
        )
    return found


def build_table(outcomes: list[Outcome], options: Options) -> Table:
    """Returns a table with one column for each protocol."""
    workers = f"{options.workers} worker{'s' * (options.workers > 1)}"
    table = Table(
        title=f"Digits: {size(model_bytes(options.hidden))} of variables, 1 parameter server, {workers}",
        caption=f"A step is one update from each worker; {options.steps} were timed after a warm-up of "
        f"{WARM_UP_STEPS}. Sent: by all tasks, from start to end.",
    )
    table.add_column("")
    for outcome in outcomes:
        table.add_column(outcome.protocol, justify="right")
    tail = 10 * options.workers

    def row(label: str, *cells: str) -> None:
        table.add_row(label, *cells)

    row("loss, last 10 steps", *(f"{_mean(o.losses[-tail:]):.4f}" for o in outcomes))
    row("test loss", *(f"{o.test_loss:.4f}" for o in outcomes))
    row("test accuracy", *(f"{o.accuracy:.1%}" for o in outcomes))
    if options.workers == 1 and len(outcomes) > 1:
        row("losses of all steps", *_same_losses(outcomes))
    table.add_section()
    row("step time, median", *(duration(o.step_time.median) for o in outcomes))
    row("p10 .. p90", *(_spread(o.step_time) for o in outcomes))
    base = outcomes[0].step_time.median
    row(
        f"speed against {outcomes[0].protocol}",
        *(f"{base / o.step_time.median:.2f}x" for o in outcomes),
    )
    table.add_section()
    for path in PATHS:
        row(f"sent {path}", *(_sent(o, path) for o in outcomes))
    table.add_section()
    for name in sorted({name for o in outcomes if o.paths for name in o.paths.transports}):
        row(f"over {name}", *(size(o.paths.transports[name]) if o.paths else "-" for o in outcomes))
    return table


def _same_losses(outcomes: list[Outcome]) -> list[str]:
    """Checks that the losses are equal bit for bit, as they are if one worker takes the steps in order."""
    first = outcomes[0]
    same = ("the same bits" if other.losses == first.losses else "differ" for other in outcomes[1:])
    return ["", *same]


def _spread(time: Distribution) -> str:
    return f"{duration(time.p10)} .. {duration(time.p90)}"


def _sent(outcome: Outcome, path: str) -> str:
    if outcome.paths is None:
        return "all, not counted" if path == "rpc" else "-"
    count = outcome.paths.tensors[path]
    return f"{size(outcome.paths.bytes[path])} in {count}" if count else "none"


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)


def run_with_progress(console: Console, options: Options, protocol: str, logs: Path) -> Outcome:
    """Runs once and shows a progress bar."""
    logs.mkdir(parents=True, exist_ok=True)
    columns = (
        TextColumn("{task.fields[protocol]:>9}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.description}"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console) as progress:
        total = options.steps + WARM_UP_STEPS
        bar = progress.add_task("starting the tasks", total=total, protocol=protocol)

        def report(step: int, loss: float) -> None:
            progress.update(bar, completed=step, description=f"loss {loss:.4f}")

        return run(options, protocol, logs, report)


def run_all(
    console: Console, options: Options, protocols: tuple[str, ...], logs: Path
) -> tuple[list[Outcome], list[str]]:
    """Returns the outcomes and what is wrong with them. Stops at a failing task and shows its log."""
    outcomes: list[Outcome] = []
    found: list[str] = []
    for protocol in dict.fromkeys(protocols):
        try:
            outcome = run_with_progress(console, options, protocol, logs / protocol)
        except TaskFailed as failure:
            console.print(
                f"[red]{protocol}: {escape(str(failure))}; the end of {failure.log}:[/red]"
            )
            console.print(escape(failure.tail()), highlight=False, soft_wrap=True)
            return outcomes, [*found, f"{protocol}: {failure}"]
        outcomes.append(outcome)
        found += faults(outcome, options)
    return outcomes, found


def as_json(options: Options, outcomes: list[Outcome], found: list[str]) -> dict[str, Any]:
    """Returns the whole outcome for --json."""
    return {
        "options": vars(options),
        "variable_bytes": model_bytes(options.hidden),
        "runs": [outcome.as_json() for outcome in outcomes],
        "faults": found,
    }


@click.command()
@click.option(
    "--steps", default=150, show_default=True, type=click.IntRange(1), help="Timed steps."
)
@click.option("--workers", default=2, show_default=True, type=click.IntRange(1, 16))
@click.option(
    "--hidden",
    default=2048,
    show_default=True,
    type=click.IntRange(16),
    help="Width of both hidden layers; 2048 gives 17 MB of variables.",
)
@click.option(
    "--protocol",
    "protocols",
    multiple=True,
    type=click.Choice(PROTOCOLS),
    default=PROTOCOLS,
    help="The protocol to run; repeatable. Default: both, one after the other.",
)
@click.option(
    "--hosts", default="", metavar="HOST,...", help="Train on these hosts, as `launch --hosts`."
)
@click.option(
    "--ssh", default="", metavar="COMMAND", help="Command for the hosts, as `launch --ssh`."
)
@click.option(
    "--json",
    "json_file",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Write all results to this file.",
)
@click.option(
    "--logs",
    type=click.Path(path_type=Path, file_okay=False),
    help="Keep the tasks' logs in this folder. Default: keep them only if something fails.",
)
def main(
    steps: int,
    workers: int,
    hidden: int,
    hosts: str,
    ssh: str,
    protocols: tuple[str, ...],
    json_file: Path | None,
    logs: Path | None,
) -> None:
    """Train a classifier of handwritten digits on this machine or on hosts, over gRPC and over grpc+rdma.

    A parameter server, the workers and the chief are separate processes. One step is one training step
    on every worker at the same time, timed on the chief from the first schedule to the last update.
    Exits with 1 if a task fails, the classifier is poor, or a tensor that should be pushed went by rpc.
    """
    console = Console()
    options = Options(steps, workers, hidden, hosts, ssh)
    machine = Environment.here(transport="several hosts" if hosts else "shm")
    console.print(machine.summary, highlight=False)
    folder = logs or Path(tempfile.mkdtemp(prefix="rdmatensor-demo-"))
    try:
        with terminate_like_interrupt():
            outcomes, found = run_all(console, options, protocols, folder)
    except KeyboardInterrupt:
        if logs is None:
            shutil.rmtree(folder)
        raise
    if outcomes:
        console.print(build_table(outcomes, options))
    for fault in found:
        console.print(f"[red]{escape(fault)}[/red]")
    if json_file:
        json_file.write_text(
            json.dumps(as_json(options, outcomes, found) | {"machine": asdict(machine)}, indent=1)
        )
    if found:
        console.print(f"The logs are in {folder}.")
        sys.exit(1)
    if logs is None:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
