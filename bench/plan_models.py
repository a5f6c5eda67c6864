# SPDX-License-Identifier: Apache-2.0
"""Plans real models over parameter servers and workers: what is static, and what planning costs.

    PYTHONPATH=tests python bench/plan_models.py [--quick] [--json plans.json]

Times are medians of several calls of the planner alone; tracing the model with Keras, which takes seconds, is
not counted. No cluster runs.
"""

from __future__ import annotations

import json
import os
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import click

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

from graph_analyzer import PlacedOn, TransferPlan, planner, sources
from graph_analyzer.analyze import DEFAULT_DEVICE, transfers
from graph_analyzer.units import size
from rdmatensor.demo.timing import Distribution, duration

REPEATS = 7
LEAST_STATIC = 0.99


@dataclass(frozen=True)
class Row:
    """One model."""

    model: str
    nodes: int
    edges: int
    step_bytes: int
    static_share: float
    unknown: int
    planner_seconds: Distribution
    analyze_seconds: float
    arena_bytes: int

    @property
    def overhead(self) -> float:
        """Memory of places, as a multiple of what travels in a step."""
        return self.arena_bytes / self.step_bytes if self.step_bytes else 0.0


def measure(name: str, model: object, strategy: PlacedOn, batch: int) -> Row:
    """Plans one step of training."""
    begin = time.perf_counter()
    found = transfers(model, sources.Request(DEFAULT_DEVICE, strategy, batch))
    analyzed = time.perf_counter() - begin
    options = planner.settings()
    seconds = []
    for _ in range(REPEATS):
        begin = time.perf_counter()
        plan: TransferPlan = planner.plan(found, options)
        seconds.append(time.perf_counter() - begin)
    return Row(
        name,
        len(found.nodes),
        len(plan.edges),
        plan.step_bytes,
        plan.static_share,
        plan.unknown,
        Distribution.of(seconds),
        analyzed,
        plan.arena_bytes,
    )


@click.command()
@click.option("--quick", is_flag=True, help="Without the models that take long to trace.")
@click.option("--ps", default=2, show_default=True)
@click.option("--workers", default=2, show_default=True)
@click.option("--batch-size", default=32, show_default=True)
@click.option("--json", "path", type=click.Path(path_type=Path), help="Write the rows.")
def main(quick: bool, ps: int, workers: int, batch_size: int, path: Path | None) -> None:
    """Print a table: what travels in a step, how much of it is static, the planner's time, and the memory
    of places. Exit status 1 when a model is less static than 99 %."""
    from rich.console import Console
    from rich.table import Table

    from support import keras_models

    makers = dict(keras_models.MODELS)
    if not quick:
        makers |= keras_models.LARGE_MODELS
    title = f"{ps} parameter servers, {workers} workers, batch {batch_size}"
    table = Table(title=title, box=None, padding=(0, 1, 0, 0))
    table.add_column("model", no_wrap=True)
    for column in ("nodes", "tensors", "bytes", "static", "planner", "memory", "of bytes"):
        table.add_column(column, justify="right", no_wrap=True)
    rows = []
    for name, make in makers.items():
        row = measure(name, make(), PlacedOn(ps, workers), batch_size)
        rows.append(row)
        unknown = f" ({row.unknown} unknown)" if row.unknown else ""
        table.add_row(
            row.model,
            f"{row.nodes:,}",
            f"{row.edges:,}",
            size(row.step_bytes),
            f"{row.static_share:.2%}{unknown}",
            duration(row.planner_seconds.median),
            size(row.arena_bytes),
            f"{row.overhead:.2f}",
        )
    Console().print(table)
    if path is not None:
        path.write_text(json.dumps([asdict(row) for row in rows], indent=1))
    if any(row.static_share < LEAST_STATIC or row.unknown for row in rows):
        raise SystemExit("a model is less static than it has to be")


if __name__ == "__main__":
    main()
