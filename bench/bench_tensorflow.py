# SPDX-License-Identifier: Apache-2.0
"""Step times of TensorFlow over grpc+rdma against stock gRPC, on one machine, in one run.

Clusters of two servers each are alive at the same time and take turns: stock gRPC, grpc+rdma without a plan
("dynamic"), grpc+rdma with a plan ("static"), and one more for every --with NAME=VALUE,..., such as
CHECKSUM=crc32c. With --veth their servers are in two network namespaces, and grpc+rdma uses tcp; --rate
limits their links, in words of tc, and --congestion chooses the kernel's congestion control. --cluster
grpc-again shows the noise of the machine.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import click

import tf_cases
from harness import Bench, in_turns, main
from networks import LOOPBACK, Network, may_make_veth
from networks import veth as veth_of
from team import HERE, Task, Team
from tf_measure import BARE, DYNAMIC, GRPC, LOCAL, STATIC, Cluster, Way, compare

# The batch size bounds the tensors whose number of rows is unknown; it changes nothing for the others.
PLANNED = replace(STATIC, settings={"RDMATENSOR_BATCH_SIZE": str(tf_cases.MOST_ROWS)})
OVER_TCP = replace(PLANNED.over_tcp(), name="tcp")
# The last one is compared with stock gRPC.
CANDIDATES = {way.name: way for way in (DYNAMIC, PLANNED, replace(GRPC, name="grpc-again"))}
UNUSED_BLOCK = 10


def with_settings(text: str) -> Way:
    """A planned cluster with the settings "NAME=VALUE,..."."""
    pairs = [pair.partition("=") for pair in text.split(",")]
    if not all(name and mark for name, mark, _ in pairs):
        raise click.UsageError(f"--with: expected NAME=VALUE, got {text!r}")
    settings = {f"RDMATENSOR_{name}": value for name, _, value in pairs}
    planned = settings.get("RDMATENSOR_PLAN") != "off"
    return Way(text, planned=planned, settings={**PLANNED.settings, **settings})


def steps(
    bench: Bench, suite: str, ways: list[Way], cases: Iterable[Any], network: Network, trio: bool
) -> None:
    """Measure cases on one cluster for each way: two workers; or a parameter server, a worker and a chief."""
    if not cases:
        return
    jobs = ("ps", "worker", "chief") if trio else ("worker", "worker")
    with Team() as team:
        clusters = []
        for way in (*ways, LOCAL):
            program = "tf_bare_task" if way == BARE else "tf_step_task" if trio else "tf_task"
            clusters.append(Cluster(team, way, jobs, program, network))
        for cluster in clusters:
            cluster.wait()
        for case in cases:
            can = [each for each in clusters if each.way != BARE or hasattr(case, "consumer")]
            compare(can, case, 1 if bench.quick else tf_cases.FULL).record(bench, suite)


def unused(bench: Bench) -> None:
    """A local training step with the plugin loaded but not used, and with the plugin disabled.

    The difference between two processes of one kind is noise.
    """
    kinds = {"plugin": {}, "no plugin": {"RDMATENSOR_DISABLE": "1"}}
    with Team() as team:
        tasks = {
            f"{kind} {number}": team.start(
                f"{kind} {number}", [sys.executable, HERE / "tf_task.py"], settings
            )[0]
            for number in (1, 2)
            for kind, settings in kinds.items()
        }

        def ask(task: Task, command: str, **fields: Any) -> Any:
            task.send(command, **fields)
            return task.answer()

        for task in tasks.values():
            task.answer()
            ask(task, "training", batch=32)
            ask(task, "block", steps=2 * UNUSED_BLOCK)
        turns = 12 * (1 if bench.quick else tf_cases.FULL)
        calls = {
            name: lambda task=task: ask(task, "block", steps=UNUSED_BLOCK)["seconds"]
            for name, task in tasks.items()
        }
        for name, samples in in_turns(calls, turns).items():
            facts = ask(tasks[name], "process")
            if facts["plugin"] == name.startswith("no "):
                bench.run.faults.append(f"{name}: the plugin is loaded: {facts['plugin']}")
            bench.add(
                *("plugin loaded but unused", "a local training step", name, samples.all),
                turns=samples.turns,
                threads=facts["threads"],
                resident_bytes=facts["resident_bytes"],
            )


def measure(
    bench: Bench,
    cluster: tuple[str, ...] = (DYNAMIC.name, STATIC.name),
    with_: tuple[str, ...] = (),
    veth: bool = False,
    rate: str = "",
    congestion: str = "",
) -> None:
    extra = [with_settings(text) for text in with_]
    targets, suite, network = tf_cases.TARGETS, "TensorFlow steps", LOOPBACK
    ways = [GRPC, *(CANDIDATES[name] for name in cluster), *extra]
    with ExitStack() as stack:
        if veth:
            if not may_make_veth(bench):
                return
            network = stack.enter_context(veth_of(rate, congestion))
            targets = tf_cases.OVER_GIGABIT if rate else tf_cases.OVER_TCP
            ways, suite = [GRPC, BARE, OVER_TCP, *extra], f"{suite}, tcp over {network.name}"

        def chosen(cases: Iterable[Any]) -> list[Any]:
            known = [each for each in cases if each.name in targets]
            known = [replace(each, target=targets[each.name]) for each in known]
            left_out = bench.quick and not bench.only
            return bench.wanted(
                [each for each in known if getattr(each, "quick", True) or not left_out]
            )

        transfers = chosen([*tf_cases.TRANSFERS, *tf_cases.TRAININGS])
        steps(bench, suite, ways, transfers, network, trio=False)
        steps(bench, suite, ways, chosen(tf_cases.STEPS), network, trio=True)
    if tf_cases.UNUSED in targets and bench.wanted([tf_cases.UNUSED]):
        unused(bench)


if __name__ == "__main__":
    main(measure)
