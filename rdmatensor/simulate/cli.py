# SPDX-License-Identifier: Apache-2.0
"""`rdmatensor simulate`."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from statistics import mean, pstdev
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from .. import units
from .setting import Amount, Setting, options
from .study import Outcome, Study, outcomes
from .synchronizers import SYNCHRONIZERS

DEFAULT = (*SYNCHRONIZERS, "AllReduce(compression='topk')", "LocalSGD(period='quality')")


def _numbers(kind: Callable[[str], Any], lowest: float) -> Amount:
    """Return the type of an option such as "2,4,8"."""

    def read(text: str) -> tuple[Any, ...]:
        try:
            found = tuple(kind(each) for each in text.split(",") if each.strip())
        except ValueError:
            found = ()
        if not found or min(found) < lowest:
            raise ValueError(f"{text!r}: expected numbers from {lowest:g} on, as 2,4,8")
        return found

    return Amount(read)


@click.command()
@click.option("--sync", "names", multiple=True, metavar="NAME(...)",
              help="A synchronizer, such as 'LocalSGD(period=8)'; repeatable. Default: all.")  # fmt: skip
@click.option("--workers", default="8", show_default=True, metavar="N,...", type=_numbers(int, 1),
              help="How many workers; several are compared.")  # fmt: skip
@click.option("--seeds", default=5, show_default=True, metavar="N", type=click.IntRange(1, 1000),
              help="Trainings of each case.")  # fmt: skip
@click.option("--target", default=0.96, show_default=True, metavar="SHARE", type=click.FloatRange(0, 1),
              help="The accuracy to reach.")  # fmt: skip
@click.option("--learning-rates", default="0.2,0.4,0.8,1.6", show_default=True, metavar="X,...",
              type=_numbers(float, 0.0), help="Each case uses its best.")  # fmt: skip
@click.option("--batch", default=256, show_default=True, metavar="N", type=click.IntRange(1),
              help="Examples of a step of all workers together.")  # fmt: skip
@options
@click.option("--jobs", default=1, show_default=True, metavar="N", type=click.IntRange(1),
              help="Processes that simulate.")  # fmt: skip
@click.option("--json", "record", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE",
              help="Write all numbers; - for the standard output instead of the table.")  # fmt: skip
@click.option("--pictures", type=click.Path(path_type=Path, file_okay=False), metavar="FOLDER",
              help="Draw accuracy over time and over bytes as SVG.")  # fmt: skip
def simulate(
    names: tuple[str, ...],
    workers: tuple[int, ...],
    seeds: int,
    target: float,
    learning_rates: tuple[float, ...],
    batch: int,
    jobs: int,
    record: Path | None,
    pictures: Path | None,
    **setting: Any,
) -> None:
    """Compare synchronizers on clusters that need not exist.

    Workers train a small network on scikit-learn's digits. Gradients and the formulas, which are those of
    rdmatensor.train, are real; the times of steps and transfers are simulated. The model counts as
    ResNet-18's 46.8 MB. The batch is divided among the workers.

    \b
    Examples:
      rdmatensor simulate
      rdmatensor simulate --workers 2,8,32,128 --sync AllReduce --sync EASGD
      rdmatensor simulate --slow 1 --death 3s --pictures build/simulated
      rdmatensor simulate --sync "LocalSGD(period='quality', bound=0.02)" --json numbers.json
    """
    cluster = Setting(**setting)
    if cluster.slow + len(cluster.deaths) > min(workers):
        raise click.UsageError(f"more slow and dying workers than there are: {min(workers)}")
    study = Study(names or DEFAULT, workers, learning_rates, seeds, target, batch, cluster)
    found = []
    try:
        for each in outcomes(study, jobs):
            found.append(each)
            if sys.stderr.isatty():
                done = f"\r{len(found)} of {len(study.synchronizers) * len(workers)}"
                click.echo(done, err=True, nl=False)
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    if record:
        outcome = [each.record() for each in found]
        document = {"kind": "simulated", "study": asdict(study), "outcomes": outcome}
        with click.open_file(str(record), "w") as file:
            file.write(json.dumps(document) + "\n")
    if str(record) != "-":
        Console(width=None if sys.stdout.isatty() else 120).print(_table(found, study))
    if pictures:
        from .pictures import write

        for path in write(found, pictures):
            click.echo(str(path), err=True)


def _table(found: list[Outcome], study: Study) -> Table:
    title = f"Simulated: {study.seeds} seeds, target {study.target:.0%}; median (least to most)"
    table = Table(title=title, title_justify="left")
    columns = "workers, synchronizer, learning rate, time to target, sent by a host, final accuracy"
    for name in columns.split(", "):
        table.add_column(name, justify="left" if name == "synchronizer" else "right")
    for each in found:
        table.add_row(
            str(each.workers),
            each.synchronizer,
            f"{each.learning_rate:g}",
            _range(each, each.seconds, units.duration),
            _range(each, each.nbytes, units.size),
            f"{mean(each.final):.2%} ± {pstdev(each.final):.2%}",
        )
    return table


def _range(each: Outcome, values: list[float | None], text: Callable[[float], str]) -> str:
    known = [value for value in values if value is not None]
    middle = each.middle(values)
    if middle is None:
        return f"{len(known)} of {len(values)} seeds"
    return f"{text(middle)} ({text(min(known))} to {text(max(known))})"
