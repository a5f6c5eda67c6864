# SPDX-License-Identifier: Apache-2.0
"""Runs steps of TensorFlow on clusters that take turns, and checks that tensors travelled as they should."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import harness
from harness import Bench, rotated
from networks import LOOPBACK, Network
from rdmatensor._tools.processes import free_addresses
from rdmatensor.units import size
from record import Distribution, Parameter
from team import HERE, PATIENCE_S, Failed, Task, Team
from tf_cases import ALONE, Case

STOCK = "grpc"
FLOOR = "nothing remote"
PATHS = ("static", "bounded", "inline", "dynamic", "bounce", "rpc")
# These are not plain bytes: only TensorFlow's RecvTensor can send them.
_UNAVOIDABLE = ("string", "variant", "resource")
_WARM_UP_BLOCKS = 2
# A full run makes this many times the steps of a quick run.
FULL = 4


@dataclass(frozen=True)
class Way:
    """How the servers of a cluster send tensors. `settings` are environment variables."""

    name: str
    protocol: str = "grpc+rdma"
    planned: bool = False
    settings: Mapping[str, str] = field(default_factory=dict)

    @property
    def environment(self) -> dict[str, str]:
        """The environment of the servers' processes. With stock gRPC the plugin is not even loaded."""
        own = {"RDMATENSOR_PLAN": "on" if self.planned else "off", "CUDA_VISIBLE_DEVICES": "-1"}
        if self.protocol == STOCK:
            own["RDMATENSOR_DISABLE"] = "1"
        return own | dict(self.settings)

    def over_tcp(self) -> Way:
        """The same, forced to use tcp."""
        return replace(self, settings={**self.settings, "RDMATENSOR_TRANSPORTS": "tcp"})


GRPC = Way(STOCK, STOCK)
DYNAMIC = Way("dynamic")
STATIC = Way("static", planned=True)
PLANNED = Way("grpc+rdma", planned=True)
# The same steps with all tasks in one process: what TensorFlow's own part of a step takes.
LOCAL = Way(FLOOR, STOCK, settings={ALONE: "1"})


class Cluster:
    """Servers, each in a process of its own that runs `program`. The chief is the client, or the first one.

    All but the client's are at the network's other end. Where nothing is remote, there is only one, the last.
    """

    def __init__(
        self,
        team: Team,
        way: Way,
        jobs: Sequence[str] = ("worker",) * 2,
        program: str = "tf_task",
        network: Network = LOOPBACK,
    ) -> None:
        self.way, self.network = way, network
        jobs = jobs[-1:] if way == LOCAL else jobs
        client = jobs.index("chief") if "chief" in jobs else 0
        cluster: dict[str, list[str]] = {}
        places = []
        for number, (job, address) in enumerate(zip(jobs, free_addresses(len(jobs)), strict=True)):
            places.append((job, len(cluster.setdefault(job, []))))
            host = network.near if number == client else network.host
            cluster[job].append(f"{host}:{address.rpartition(':')[2]}")
        script = [sys.executable, HERE / f"{program}.py", json.dumps(cluster)]
        self.tasks = [
            task
            for number, (job, index) in enumerate(places)
            for task in team.start(
                f"{way.name}, {job} {index}",
                [*(() if number == client else network.prefix), *script, job, index, way.protocol],
                way.environment | network.environment,
            )
        ]
        self.client: Task = self.tasks[client]

    def wait(self) -> None:
        """Wait until all servers have started. Failed if the plugin is missing, or loaded by mistake."""
        for task in self.tasks:
            task.answer()
        for task, facts in zip(self.tasks, self.ask_all("process"), strict=True):
            if facts["plugin"] != (self.way.protocol != STOCK):
                state = "has the plugin loaded" if facts["plugin"] else "has no plugin loaded"
                raise Failed(f"{task.name} {state}")

    def ask(self, command: str, patience: float = PATIENCE_S, **fields: Any) -> Any:
        """The client's answer to a command. Failed if there is none after `patience` seconds."""
        return self.client.ask(command, patience, **fields)

    def ask_all(self, command: str, patience: float = PATIENCE_S, **fields: Any) -> list[Any]:
        """The answers of all tasks, which work on the command at the same time."""
        for task in self.tasks:
            task.send(command, **fields)
        return [task.answer(patience) for task in self.tasks]

    def reset(self) -> None:
        """Set the plugin's counters to zero."""
        if self.way.protocol != STOCK:
            self.ask_all("reset")

    def use(self) -> Use:
        """What the tasks have counted since `reset`."""
        return Use([] if self.way.protocol == STOCK else self.ask_all("stats"))


def clusters_of(
    team: Team, ways: Sequence[Way], *more: Any, make: type[Cluster] = Cluster
) -> list[Cluster]:
    """A cluster for each way, when all have started."""
    clusters = [make(team, way, *more) for way in ways]
    for cluster in clusters:
        cluster.wait()
    return clusters


@dataclass(frozen=True)
class Use:
    """`rdmatensor.tensorflow.stats()` of each task of a cluster; empty for stock gRPC."""

    tasks: list[dict[str, Any]]

    def sent(self, what: str) -> Counter[str]:
        """What all tasks sent by each path: "tensors" or "bytes"."""
        return Counter({path: self.total("paths", path, f"sent_{what}") for path in PATHS})

    def pushed_bytes(self) -> int:
        """The bytes that went by any path but rpc."""
        return sum(nbytes for path, nbytes in self.sent("bytes").items() if path != "rpc")

    @property
    def grpc_calls(self) -> int:
        """The calls between tasks that were made over gRPC although the plugin can make them."""
        return sum(to["grpc_calls"] for stats in self.tasks for to in stats["control"].values())

    def total(self, *names: str) -> int:
        """The sum of the counter that these keys lead to."""
        total = 0
        for stats in self.tasks:
            value: Any = stats
            for name in names:
                value = value[name]
            total += value
        return total

    def avoidable(self) -> Iterator[str]:
        """What went by rpc although its kind can be pushed."""
        reasons = sum((Counter(stats["rpc_reasons"]) for stats in self.tasks), Counter())
        for reason, count in reasons.items():
            if reason not in _UNAVOIDABLE:
                yield f"{count} tensors that can be pushed went by rpc: {reason}"
        # A receiver that fetches from the start gives no reason, because nothing was offered to it.
        if (unexplained := self.sent("tensors")["rpc"] - sum(reasons.values())) > 0:
            yield f"{unexplained} tensors were fetched by rpc before they could be pushed"
        for stats in self.tasks:
            for peer in stats["peers"]:
                if peer["state"] in ("rpc", "refused"):
                    yield f"gRPC only: {peer['direction']} {peer['task']}: {peer['why']}"


@dataclass
class Result(harness.Samples):
    """The step times of one case on one cluster, and what the tasks counted meanwhile."""

    way: Way = GRPC
    losses: list[Any] = field(default_factory=list)
    # All steps, including the untimed ones of each block.
    steps: int = 0
    # Bytes per step that crossed the network, for each block.
    carried: list[float] = field(default_factory=list)
    use: Use = field(default_factory=lambda: Use([]))

    @property
    def carried_bytes(self) -> float:
        """The median of the blocks."""
        return Distribution.of(self.carried).median


def faults_of(case: Case, result: Result) -> Iterator[str]:
    """Steps of one cluster that did not move what they should, or not by the path that they should."""
    way, steps, use = result.way, result.steps, result.use
    if way.protocol == STOCK:
        if (moved := result.carried_bytes) < case.step_bytes:
            yield f"a step over {way.name} moved only {size(moved)} over the network"
        return
    if case.path is None:
        return
    if (pushed := use.pushed_bytes() / steps) < case.step_bytes:
        yield f"a step over {way.name} pushed only {size(pushed)}"
    yield from use.avoidable()
    if not way.planned or not case.path:
        return
    if use.sent("bytes")[case.path] < steps * case.step_bytes:
        yield f"tensors on {way.name} did not take the path {case.path}"
    tensors = use.sent("tensors")
    if others := tensors.total() - sum(tensors[each] for each in {"static", case.path}):
        yield f"{others} tensors on {way.name} did not go to their planned places"


def add(
    bench: Bench,
    suite: str,
    case: Case,
    results: Sequence[Result],
    check: Callable[[Case, Result], Iterator[str]] = faults_of,
    same_losses: bool = True,
    **parameters: Parameter,
) -> None:
    """Record results, of which the last one is compared with the first, and faults.

    The floor is the result of LOCAL, which is not checked.
    """
    floor = next((each.spread.median for each in results if each.way == LOCAL), None)
    remote = [each for each in results if each.way != LOCAL]
    faults = [fault for each in remote for fault in check(case, each)]
    first, last = remote[0], remote[-1]
    if same_losses and any(each.losses != first.losses for each in remote):
        faults.append("the losses differ")
    bench.run.faults += [f"{case.name}: {fault}" for fault in faults]
    for each in results:
        compared = each is last is not first
        over = None if floor is None or each.way == LOCAL else each.spread.median - floor
        bench.add(
            *(suite, case.name, each.way.name, each.all),
            rival=(first.way.name, case.target) if compared else ("", None),
            step_bytes=case.step_bytes,
            over_floor_s=over,
            **parameters,
        )


def compare(
    bench: Bench,
    suite: str,
    clusters: Sequence[Any],
    case: Case,
    full: float = FULL,
    patience: float = PATIENCE_S,
    **more: Any,
) -> list[Result]:
    """Have each cluster build the step of a case, time it in turns of blocks, and record it; see `add`.

    A full run makes `full` times the steps. Failed if building or a block takes over `patience` seconds.
    """
    for cluster in clusters:
        cluster.ask(patience=patience, **case.build)
        cluster.ask("block", patience, steps=case.block * _WARM_UP_BLOCKS)
        cluster.reset()
    steps = max(case.block, round(case.steps * (1 if bench.quick else full)))
    results = [Result(way=cluster.way) for cluster in clusters]
    pairs = {each.way.name: (each, own) for each, own in zip(clusters, results, strict=True)}
    for names in rotated(list(pairs), -(-steps // case.block)):
        for name in names:
            cluster, result = pairs[name]
            before = cluster.network.carried_bytes
            answer = cluster.ask("block", patience, steps=case.block)
            result.steps += answer["steps"]
            result.carried.append((cluster.network.carried_bytes - before) / answer["steps"])
            result.blocks.append(answer["seconds"])
            result.losses += answer["losses"]
    for cluster, result in zip(clusters, results, strict=True):
        result.use = cluster.use()
        cluster.ask("close")
    add(bench, suite, case, results, **more)
    return results
