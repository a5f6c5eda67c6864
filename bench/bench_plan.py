# SPDX-License-Identifier: Apache-2.0
"""The planner's time for a large training graph: parameter servers, workers, data parallel.

Every worker reads all variables and sends a gradient for each. Times are of the C functions alone
("C"), and of the whole calls from Python, which also make a record of every tensor.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from rdmatensor import plan
from rdmatensor._ffi import ffi, lib
from rdmatensor.demo.machine import describe, summary
from rdmatensor.demo.timing import Distribution, duration, size
from rdmatensor.errors import check

SERVERS, WORKERS = 4, 8
TASKS = SERVERS + WORKERS
FLOAT = 1
# Weights and biases of layers by turns, as (rows, columns).
SHAPES = ((512, 256), (256,), (256, 64), (64,))


class Graph:
    """A training step over `edge_count` tensors, as the planner takes it."""

    def __init__(self, edge_count: int) -> None:
        self.nodes: list[plan.Node] = []
        self.arcs: list[plan.Arc] = []
        self.uses: list[plan.Use] = []
        self.names: list[str] = []
        variables = max(1, edge_count // (2 * WORKERS))
        reads = [self.add(v % SERVERS, plan.NodeFlag.FREE) for v in range(variables)]
        for worker in range(SERVERS, TASKS):
            self.add_worker(worker, reads)

    def add(self, task: int, flags: int = 0, after: tuple[int, ...] = ()) -> int:
        number = len(self.nodes)
        self.nodes.append(plan.Node(task, int(flags)))
        self.arcs += [plan.Arc(before, number) for before in after]
        return number

    def send(self, name: str, producer: int, consumer: int) -> None:
        self.uses.append(plan.Use(producer, [consumer]))
        self.names.append(name)

    def add_worker(self, worker: int, reads: list[int]) -> None:
        forward = [self.add(worker)]
        for variable, read in enumerate(reads):
            forward.append(self.add(worker, after=(forward[-1], read)))
            self.send(f"model/layer_{variable // 2}/variable_{variable}/Read:0", read, forward[-1])
        backward = forward[-1]
        for variable in reversed(range(len(reads))):
            backward = self.add(worker, after=(backward, forward[variable]))
            update = self.add(variable % SERVERS, after=(backward,))
            self.send(f"worker_{worker}/gradients/variable_{variable}:0", backward, update)

    def edges(self, orders: list[plan.Order]) -> list[plan.Edge]:
        return [
            plan.Edge(
                name,
                self.nodes[use.producer].task,
                self.nodes[use.consumers[0]].task,
                FLOAT,
                4,
                SHAPES[position % len(SHAPES)],
                0,
                order,
            )
            for position, (name, use, order) in enumerate(
                zip(self.names, self.uses, orders, strict=True)
            )
        ]


def make_in_c(edges: list[plan.Edge], options: plan.Options) -> Callable[[], None]:
    """The C function on arrays that are made once."""
    kept: list[Any] = []
    array = plan._edges(edges, kept)
    chosen = plan._options(options, TASKS, kept)
    out = ffi.new("rdt_plan **")

    def call() -> None:
        kept  # noqa: B018 - what the arrays point to
        check(lib.rdt_plan_make(array, len(array), TASKS, chosen, out))
        lib.rdt_plan_free(out[0])

    return call


def timed(call: Callable[[], object], rounds: int) -> Distribution:
    times = []
    for _ in range(rounds):
        begin = time.perf_counter()
        call()
        times.append(time.perf_counter() - begin)
    return Distribution.of(times)


def measure(graph: Graph, rounds: int) -> tuple[dict[str, Distribution], plan.Plan]:
    orders = plan.find_order(graph.nodes, graph.arcs, graph.uses)
    edges = graph.edges(orders)
    free = plan.Options()
    whole = plan.make(edges, TASKS, free)
    memory = [
        sum(link.bytes for link in whole.links if link.destination == t) for t in range(TASKS)
    ]
    tight = plan.Options(budgets=[count // 2 for count in memory])
    calls: dict[str, Callable[[], object]] = {
        "find_order, from Python": lambda: plan.find_order(graph.nodes, graph.arcs, graph.uses),
        "make, C": make_in_c(edges, free),
        "make with half the memory, C": make_in_c(edges, tight),
        "make, from Python": lambda: plan.make(edges, TASKS, free),
    }
    return {name: timed(call, rounds) for name, call in calls.items()}, whole


def render(times: dict[str, Distribution], graph: Graph, whole: plan.Plan) -> Table:
    title = f"{len(graph.uses)} tensors, {len(graph.nodes)} nodes, {TASKS} tasks"
    table = Table(title=title, title_justify="left", caption_justify="left")
    for column in ("", "p10", "median", "p90"):
        table.add_column(column, justify="right" if column else "left")
    for name, t in times.items():
        table.add_row(name, *(duration(seconds) for seconds in (t.p10, t.median, t.p90)))
    table.caption = (
        f"{size(sum(place.bytes for place in whole.places))} a step in "
        f"{size(sum(link.bytes for link in whole.links))} of slots, "
        f"{sum(link.group_count for link in whole.links)} groups"
    )
    return table


@click.command()
@click.option("--edges", default=100_000, show_default=True, help="Tensors of the graph, about.")
@click.option("--rounds", default=5, show_default=True, help="Calls of each function.")
@click.option(
    "--json", "json_file", type=click.Path(path_type=Path, dir_okay=False), help="Write all."
)
def main(edges: int, rounds: int, json_file: Path | None) -> None:
    """How long the planner takes."""
    console = Console()
    machine = describe(("rdmatensor", "cffi"))
    console.print(summary(machine), highlight=False)
    graph = Graph(edges)
    times, whole = measure(graph, rounds)
    console.print(render(times, graph, whole))
    if json_file:
        rows = {name: times_of.as_json() for name, times_of in times.items()}
        fields = {"machine": machine, "edges": len(graph.uses), "rows": rows}
        json_file.write_text(json.dumps(fields, indent=1))


if __name__ == "__main__":
    main()
