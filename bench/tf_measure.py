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
from tf_cases import ALONE

STOCK = "grpc"
FLOOR = "nothing remote"
PATHS = ("static", "bounded", "inline", "dynamic", "bounce", "rpc")
# These are not plain bytes: only TensorFlow's RecvTensor can send them.
_UNAVOIDABLE = ("string", "variant", "resource")
_WARM_UP_BLOCKS = 2


@dataclass
class Samples(harness.Samples):
    """The step times of one case on one cluster."""

    losses: list[Any] = field(default_factory=list)
    # All steps, including the untimed ones of each block.
    steps: int = 0
    # Bytes per step that crossed the network, for each block.
    carried: list[float] = field(default_factory=list)

    @property
    def carried_bytes(self) -> float:
        """The median of the blocks."""
        return Distribution.of(self.carried).median


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
# The same steps with all tasks in one process: what TensorFlow's own part of a step takes.
LOCAL = Way(FLOOR, STOCK, settings={ALONE: "1"})
# The bytes of the same steps without TensorFlow: what the kernel takes for them.
BARE = Way("bare sockets", STOCK)


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
        self.client.send(command, **fields)
        return self.client.answer(patience)

    def ask_all(self, command: str, patience: float = PATIENCE_S, **fields: Any) -> list[Any]:
        """The answers of all tasks, which work on the command at the same time."""
        for task in self.tasks:
            task.send(command, **fields)
        return [task.answer(patience) for task in self.tasks]

    def cpu_seconds(self) -> float:
        """The processor time that all tasks have used."""
        return sum(float(facts["cpu_seconds"]) for facts in self.ask_all("process"))

    def reset(self) -> None:
        """Set the plugin's counters to zero."""
        if self.way.protocol != STOCK:
            self.ask_all("reset")

    def use(self) -> Use:
        """What the tasks have counted since `reset`."""
        return Use([] if self.way.protocol == STOCK else self.ask_all("stats"))


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


@dataclass(frozen=True)
class Result:
    """One case on one cluster: what building and warming up used, and the timed steps.

    `cpu_seconds` is the processor time of all tasks during the timed steps and while others had their turns.
    """

    way: Way
    samples: Samples
    warm_up: Use
    timed: Use
    cpu_seconds: float = 0.0

    def parameters(self) -> Iterator[tuple[str, Parameter]]:
        """What a step used, for the record."""
        yield "network_bytes", self.samples.carried_bytes
        yield "cpu_s_of_a_step", self.cpu_seconds / self.samples.steps
        tensors, nbytes = self.timed.sent("tensors"), self.timed.sent("bytes")
        for path in filter(tensors.get, PATHS):
            yield f"tensors_{path}", tensors[path] / self.samples.steps
            yield f"bytes_{path}", nbytes[path] / self.samples.steps
        if self.timed.tasks:
            yield "arena_bytes", self.timed.total("arena", "peak_bytes")
        if self.timed.tasks and self.way.planned:
            yield "lent", self.timed.total("fetched", "in_place", "tensors") / self.samples.steps
            for name in ("groups", "fused", "busy", "place_bytes"):
                yield f"plan_{name}", self.timed.total("plan", name)


@dataclass(frozen=True)
class Row:
    """One case on all clusters, of which the last is compared with the first.

    A step moves at least `step_bytes` bytes. `target` is the speedup over the first cluster that we want.
    With a plan, tensors take `path` ("" if that is not checked, None if they travel inside messages). `floor`
    is the same step with nothing remote.
    """

    name: str
    step_bytes: int
    target: float | None
    results: list[Result]
    path: str | None = "static"
    floor: Result | None = None

    def over_floor(self, result: Result) -> float | None:
        """The seconds that a step takes longer than the same step with nothing remote."""
        if self.floor is None or result is self.floor:
            return None
        return result.samples.spread.median - self.floor.samples.spread.median

    def faults(self) -> Iterator[str]:
        """Reasons why the measurement is not valid."""
        for result in self.results:
            yield from self.faults_of(result)
        first, *others = (result.samples.losses for result in self.results)
        if any(other != first for other in others):
            yield "the losses differ"

    def faults_of(self, result: Result) -> Iterator[str]:
        """Steps of one cluster that did not move what they should, or not by the path that they should."""
        name, steps, use = result.way.name, result.samples.steps, result.timed
        if result.way.protocol == STOCK:
            if (moved := result.samples.carried_bytes) < self.step_bytes:
                yield f"a step over {name} moved only {size(moved)} over the network"
            return
        if self.path is None:
            return
        if (pushed := use.pushed_bytes() / steps) < self.step_bytes:
            yield f"a step over {name} pushed only {size(pushed)}"
        yield from use.avoidable()
        if not result.way.planned or not self.path:
            return
        if use.sent("bytes")[self.path] < steps * self.step_bytes:
            yield f"tensors on {name} did not take the path {self.path}"
        tensors = use.sent("tensors")
        if others := tensors.total() - sum(tensors[each] for each in {"static", self.path}):
            # The plan refuses a place before the first step, while the case warms up.
            uses = {"busy": use, "unfit": use}
            uses |= {"over_budget": result.warm_up, "mismatched": result.warm_up}
            why = ", ".join(f"{each.total('plan', event)} {event}" for event, each in uses.items())
            yield f"{others} tensors on {name} did not go to their planned places ({why})"

    def record(self, bench: Bench, suite: str, **parameters: Parameter) -> None:
        """Add results and faults to the record."""
        bench.run.faults += [f"{self.name}: {fault}" for fault in self.faults()]
        first, last = self.results[0], self.results[-1]
        for result in [*self.results, *([self.floor] if self.floor else [])]:
            compared = result is last is not first
            bench.add(
                *(suite, self.name, result.way.name, result.samples.all),
                turns=result.samples.turns,
                rival=(first.way.name, self.target) if compared else ("", None),
                step_bytes=self.step_bytes,
                over_floor_s=self.over_floor(result),
                **{**dict(result.parameters()), **parameters},
            )


def measure(
    clusters: Sequence[Cluster],
    build: dict[str, Any],
    steps: int,
    block: int,
    patience: float = PATIENCE_S,
) -> list[Result]:
    """Have each cluster build a workload, and time `steps` steps of it in turns of `block` steps.

    `build` is a command with its fields. Failed if building or a block takes over `patience` seconds.
    """
    warm_up = []
    for cluster in clusters:
        cluster.reset()
        cluster.ask(patience=patience, **build)
        cluster.ask("block", patience, steps=block * _WARM_UP_BLOCKS)
        warm_up.append(cluster.use())
        cluster.reset()
    asked = {cluster.way.name: cluster.ask for cluster in clusters}
    began = [cluster.cpu_seconds() for cluster in clusters]
    samples = interleave(asked, steps, block, patience, clusters[0].network)
    results = [
        Result(
            *(cluster.way, samples[cluster.way.name], before, cluster.use()),
            cluster.cpu_seconds() - idle,
        )
        for cluster, before, idle in zip(clusters, warm_up, began, strict=True)
    ]
    for cluster in clusters:
        cluster.ask("close")
    return results


def compare(clusters: Sequence[Cluster], case: Any, factor: float = 1, row: type[Row] = Row) -> Row:
    """Measure a case, which has a name, step_bytes, target, build, steps, block and path."""
    steps = max(case.block, round(case.steps * factor))
    results = measure(clusters, case.build, steps, case.block)
    floor = next((result for result in results if result.way == LOCAL), None)
    others = [result for result in results if result is not floor]
    return row(case.name, case.step_bytes, case.target, others, case.path, floor)


def interleave(
    asked: Mapping[str, Callable[..., Any]],
    steps: int,
    block: int,
    patience: float = PATIENCE_S,
    network: Network = LOOPBACK,
) -> dict[str, Samples]:
    """Ask for blocks of steps in turns, so that drift of the machine affects all alike."""
    samples = {name: Samples() for name in asked}
    for names in rotated(list(asked), -(-steps // block)):
        for name in names:
            start = network.carried_bytes
            answer = asked[name]("block", patience, steps=block)
            sample = samples[name]
            sample.steps += answer["steps"]
            sample.carried.append((network.carried_bytes - start) / answer["steps"])
            sample.blocks.append(answer["seconds"])
            sample.losses += answer["losses"]
    return samples
