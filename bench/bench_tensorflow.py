# SPDX-License-Identifier: Apache-2.0
"""Step times of TensorFlow over grpc+rdma against stock gRPC, on one machine, in one run.

Clusters of two servers each are alive at the same time and take turns: stock gRPC, grpc+rdma without a plan
("dynamic"), grpc+rdma with a plan ("static"), and one more for every --with. With --veth their servers are in
two network namespaces, and grpc+rdma uses tcp. docs/benchmarks.md explains the method.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import click
from rich.console import Console

import tf_cases
from networks import LOOPBACK, Network, missing_veth, veth
from options import benchmark, json_option, only_option, quick_option
from team import Team
from tf_measure import (
    BARE,
    DYNAMIC,
    GRPC,
    LOCAL,
    STATIC,
    Cluster,
    Trio,
    Unused,
    Way,
    measure,
    measure_unused,
    ratio,
)
from tf_report import Row, plan_table, step_table, unused_faults, unused_records, unused_table

# The batch size bounds the tensors whose number of rows is unknown; it changes nothing for the others.
PLANNED = replace(STATIC, settings={"RDMATENSOR_BATCH_SIZE": str(tf_cases.MOST_ROWS)})
OVER_TCP = replace(PLANNED.over_tcp(), name="tcp")
# The last one is compared with all others.
CANDIDATES = {way.name: way for way in (DYNAMIC, PLANNED, replace(GRPC, name="grpc-again"))}
# The speedup over gRPC that is wanted of each case, if any.
Targets = Mapping[str, float | None]


def with_settings(
    context: click.Context, option: click.Parameter, texts: tuple[str, ...]
) -> list[Way]:
    """A planned cluster for each text, "NAME=VALUE,...", with these settings of rdmatensor."""
    ways = []
    for text in texts:
        pairs = [pair.partition("=") for pair in text.split(",")]
        if not all(name and mark for name, mark, _ in pairs):
            raise click.BadParameter(f"expected NAME=VALUE, got {text!r}", context, option)
        settings = {f"RDMATENSOR_{name}": value for name, _, value in pairs}
        planned = settings.get("RDMATENSOR_PLAN") != "off"
        ways.append(Way(text, planned=planned, settings={**PLANNED.settings, **settings}))
    return ways


def measure_rows(
    team: Team, ways: list[Way], targets: Targets, factor: int, network: Network
) -> Iterator[Row]:
    """Measure the cases that have an entry in `targets`, on one cluster for each way."""
    clusters = [
        Cluster(team, way, program="tf_bare_task" if way == BARE else "tf_task", network=network)
        for way in (*ways, LOCAL)
    ]
    for cluster in clusters:
        cluster.wait()
    for case in tf_cases.TRANSFERS:
        if case.name in targets:
            build: dict[str, Any] = {"command": "transfer", **asdict(case)}
            results = measure(clusters, build, case.steps * factor, case.block)
            yield Row.of(case.name, case.step_bytes, targets[case.name], results, case.path)
    # The worker receives the variables and sends gradients of the same size back.
    moved = 2 * tf_cases.TRAINING_BYTES
    for training in tf_cases.TRAININGS:
        if training.name in targets:
            build = {"command": "training", "batch": training.batch}
            trained = [cluster for cluster in clusters if cluster.way != BARE]
            results = measure(trained, build, training.steps * factor, training.block)
            yield Row.of(training.name, moved, targets[training.name], results)


def measure_steps(
    team: Team, ways: list[Way], targets: Targets, factor: int, network: Network
) -> Iterator[Row]:
    """The same for TensorFlow 2's own ways to run a step."""
    clusters = [Trio(team, way, "tf_step_task") for way in (*ways, LOCAL)]
    for cluster in clusters:
        cluster.wait()
    for case in tf_cases.STEPS:
        if case.name in targets:
            build = {"command": case.kind, "count": case.count, "nbytes": case.nbytes}
            results = measure(clusters, {**build, "fed": case.fed}, case.steps * factor, case.block)
            yield Row.of(case.name, case.step_bytes, targets[case.name], results, path="")


def run(
    console: Console,
    logs: Path,
    ways: list[Way],
    targets: Targets,
    factor: int,
    network: Network,
) -> tuple[list[Row], Unused | None]:
    """Measure the cases of `targets`. TaskFailed if a task fails, which includes that a value is wrong."""
    rows: list[Row] = []
    unused = None
    with ExitStack() as stack:
        status = stack.enter_context(console.status(f"starting {len(ways)} clusters"))
        of_steps = {case.name for case in tf_cases.STEPS}
        for kind, wanted in (
            (measure_rows, set(targets) - of_steps - {tf_cases.UNUSED_NAME}),
            (measure_steps, set(targets) & of_steps),
        ):
            if not wanted:
                continue
            with Team(logs) as team:
                for row in kind(team, ways, targets, factor, network):
                    rows.append(row)
                    speed, _ = ratio(row.results[0], row.results[-1])
                    status.update(f"measured {row.name}: {speed:.1f}x; continuing")
        if tf_cases.UNUSED_NAME in targets:
            status.update("measuring a local model, with and without the plugin loaded")
            with Team(logs) as team:
                steps = tf_cases.UNUSED_STEPS * factor
                unused = measure_unused(team, tf_cases.UNUSED_BATCH, steps, tf_cases.UNUSED_BLOCK)
    return rows, unused


def report(console: Console, rows: list[Row], unused: Unused | None) -> None:
    """Print the tables."""
    if rows:
        console.print(step_table(rows))
        if any(result.way.planned for result in rows[0].results):
            console.print(plan_table(rows))
    if unused:
        console.print(unused_table(unused))


@click.command()
@quick_option(f"Make 1/{tf_cases.FULL} of the steps: about five minutes.")
@only_option(tf_cases.NAMES)
@json_option
@click.option(
    "--cluster",
    "chosen",
    multiple=True,
    type=click.Choice(list(CANDIDATES)),
    default=list(CANDIDATES)[:2],
    show_default=True,
    help='Measure this cluster beside stock gRPC; repeatable. "grpc-again" shows the noise of the machine.',
)
@click.option(
    "--with",
    "extra",
    multiple=True,
    metavar="NAME=VALUE,...",
    callback=with_settings,
    help="Measure one more cluster with these settings, such as CHECKSUM=crc32c; repeatable.",
)
@click.option(
    "--veth", "with_veth", is_flag=True, help="Measure tcp between two namespaces; as root."
)
@click.option("--rate", default="", help="Limit them, in words of tc, such as 1gbit.")
@click.option("--congestion", default="", help="Their congestion control, such as cubic.")
def main(
    quick: bool,
    only: tuple[str, ...],
    json_file: Path | None,
    chosen: tuple[str, ...],
    extra: list[Way],
    with_veth: bool,
    rate: str,
    congestion: str,
) -> None:
    """Measure TensorFlow steps over grpc+rdma against stock gRPC, in turns, on this machine.

    The exit status is 1 if a task fails, a value is wrong, or a tensor takes another path than it should. A
    missed target is shown in red but does not fail the run.
    """
    if (rate or congestion) and not with_veth:
        raise click.UsageError("--rate and --congestion need --veth")
    targets = tf_cases.TARGETS
    names = tf_cases.names(quick)
    ways = [GRPC, *(way for name, way in CANDIDATES.items() if name in chosen), *extra]
    suite = "TensorFlow steps"
    if with_veth:
        targets = tf_cases.OVER_GIGABIT if rate else tf_cases.OVER_TCP
        names = [*targets]
        ways = [GRPC, BARE, OVER_TCP, *extra]
    with benchmark(suite, 190, quick, json_file) as (console, whole, logs), ExitStack() as stack:
        network = LOOPBACK
        if with_veth:
            if missing := missing_veth():
                whole.missing.append(missing)
                return
            network = stack.enter_context(veth(rate, congestion))
            suite = f"TensorFlow steps, tcp over {network.name}"
        wanted = {name: targets.get(name) for name in only or names}
        factor = 1 if quick else tf_cases.FULL
        rows, unused = run(console, logs, ways, wanted, factor, network)
        report(console, rows, unused)
        whole.faults = [fault for row in rows for fault in row.faults()]
        whole.results = [each for row in rows for each in row.records(suite)]
        if unused:
            whole.faults += unused_faults(unused)
            whole.results += unused_records(unused)


if __name__ == "__main__":
    main()
