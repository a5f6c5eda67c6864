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
import tempfile
from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import click
import numpy as np

import tf_cases
from harness import Bench, in_turns, main
from member import timed
from networks import LOOPBACK, Network, may_make_veth
from networks import veth as veth_of
from programs import build, first_line, run, started, test_device
from team import HERE, Failed, Team
from tf_cases import Case
from tf_measure import DYNAMIC, FULL, GRPC, LOCAL, STATIC, STOCK, Use, Way, clusters_of, compare

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


class Bare:
    """The bytes of a step over sockets.c instead of a cluster: what the kernel alone takes for them."""

    way = Way("bare sockets", STOCK)

    def __init__(self, program: Path, network: Network) -> None:
        self.network, self._program, self._stack = network, program, ExitStack()

    def reset(self) -> None:
        """Nothing is counted."""

    def use(self) -> Use:
        return Use([])

    def ask(self, command: str, patience: float = 0.0, steps: int = 0, **case: Any) -> Any:
        """Return the answer in the form of those that tasks of a cluster give."""
        host = self.network.host
        if command == "transfer":
            self._nbytes = case["count"] * case["nbytes"]
            serve = [*self.network.prefix, self._program, "serve", "stream", host, self._nbytes]
            self._port = first_line(self._stack.enter_context(started(serve)))
        if command == "close":
            self._stack.close()
        if command != "block":
            return {}
        # The first step warms up.
        words = [self._program, "stream", host, self._port, self._nbytes, steps + 1, 1]
        seconds = [float(line) / 1e6 for line in run(words).split()][1:]
        return {"seconds": seconds, "losses": [], "steps": steps + 1}


class Copies:
    """The copies of a step between devices, one to the host and one from it, instead of a cluster."""

    way = Way("two copies", STOCK)

    def __init__(self) -> None:
        self.network, self.carried_bytes = self, 0
        self._arrays: list[list[Any]] = []

    def reset(self) -> None:
        """Nothing is counted."""

    def use(self) -> Use:
        return Use([])

    def ask(self, command: str, patience: float = 0.0, steps: int = 0, **case: Any) -> Any:
        """Return the answer in the form of those that tasks of a cluster give."""
        if command == "devices":
            own = range(case["count"])
            self._arrays = [[np.ones(case["nbytes"], np.uint8) for _ in range(3)] for _ in own]
        if command == "close":
            self._arrays = []
        if command != "block":
            return {}
        seconds = timed(self._copy, steps + 1)[1:]
        return {"seconds": seconds, "losses": [], "steps": steps + 1}

    def _copy(self) -> None:
        for source, host, target in self._arrays:
            np.copyto(host, source)
            np.copyto(target, host)
            self.carried_bytes += host.nbytes


def between_devices(bench: Bench, suite: str, cases: list[Case]) -> None:
    """Measure cases over shared memory, on a device of which each copy is one of memcpy."""
    if not cases:
        return
    with tempfile.TemporaryDirectory() as folder, Team() as team:
        try:
            library = test_device(Path(folder))
        except (OSError, Failed) as error:
            bench.missing("the tests' device", str(error), "a C compiler named cc (gcc)")
            return
        ways = [
            replace(way, settings={**way.settings, tf_cases.DEVICE_LIBRARY: str(library)})
            for way in (GRPC, STATIC)
        ]
        clusters = clusters_of(team, ways)
        for case in cases:
            compare(bench, f"{suite}, between devices", [Copies(), *clusters], case)


def steps(
    bench: Bench,
    suite: str,
    ways: list[Way],
    cases: list[Case],
    network: Network,
    trio: bool,
    bare: Bare | None,
) -> None:
    """Measure cases on one cluster for each way: two workers; or a parameter server, a worker and a chief."""
    if not cases:
        return
    jobs = ("ps", "worker", "chief") if trio else ("worker", "worker")
    with Team() as team:
        program = "tf_chief_task" if trio else "tf_task"
        first, *others = clusters_of(team, [*ways, LOCAL], jobs, program, network)
        for case in cases:
            between = [bare] if bare and case.build["command"] == "transfer" else []
            compare(bench, suite, [first, *between, *others], case)


def unused(bench: Bench) -> None:
    """A local training step with the plugin loaded but not used, and with the plugin disabled.

    The difference between two processes of one kind is noise.
    """
    kinds = {"plugin": {}, "no plugin": {"RDMATENSOR_DISABLE": "1"}}
    with Team() as team:
        tasks = {
            f"{kind} {number}": team.start(kind, [sys.executable, HERE / "tf_task.py"], settings)[0]
            for number in (1, 2)
            for kind, settings in kinds.items()
        }
        for task in tasks.values():
            task.answer()
            task.ask("training", batch=32)
            task.ask("block", steps=2 * UNUSED_BLOCK)
        calls = {
            name: lambda task=task: task.ask("block", steps=UNUSED_BLOCK)["seconds"]
            for name, task in tasks.items()
        }
        for name, samples in in_turns(calls, 12 * (1 if bench.quick else FULL)).items():
            if (loaded := tasks[name].ask("process")["plugin"]) == name.startswith("no "):
                bench.run.faults.append(f"{name}: the plugin is loaded: {loaded}")
            bench.add("plugin loaded but unused", "a local training step", name, samples.all)


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
    bare = None
    with ExitStack() as stack:
        if veth:
            if not may_make_veth(bench):
                return
            network = stack.enter_context(veth_of(rate, congestion))
            targets = tf_cases.OVER_GIGABIT if rate else tf_cases.OVER_TCP
            ways, suite = [GRPC, OVER_TCP, *extra], f"{suite}, tcp over {network.name}"
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            bare = Bare(build(folder, "sockets") / "sockets", network)

        def chosen(cases: Iterable[Case]) -> list[Case]:
            all_of_them = not bench.quick or bench.only
            known = [each for each in cases if each.name in targets and (each.quick or all_of_them)]
            return bench.wanted([replace(each, target=targets[each.name]) for each in known])

        on = partial(steps, bench, suite, ways, network=network, bare=bare)
        on(cases=chosen([*tf_cases.TRANSFERS, *tf_cases.TRAININGS]), trio=False)
        on(cases=chosen(tf_cases.STEPS), trio=True)
        if not veth:
            between_devices(bench, suite, chosen(tf_cases.DEVICES))
    if tf_cases.UNUSED in targets and bench.wanted([tf_cases.UNUSED]):
        unused(bench)


if __name__ == "__main__":
    main(measure)
