# SPDX-License-Identifier: Apache-2.0
"""Runs the cases of the benchmarks on clusters, a block of steps on one, then on the next."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rdmatensor.demo.cluster import SILENCE_S, environment
from rdmatensor.demo.launch import Child, TaskFailed, Team, free_addresses
from rdmatensor.demo.paths import STOCK, Paths
from rdmatensor.demo.timing import Distribution

_TASK = str(Path(__file__).with_name("tf_task.py"))
_WARM_UP_BLOCKS = 2


@dataclass
class Samples:
    """What the blocks of one case on one cluster (or in one kind of process) gave."""

    # Of single steps, block by block.
    blocks: list[list[float]] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    # All steps made, the untimed ones of each block, too.
    steps: int = 0
    # Bytes that crossed the loopback interface in a block, divided by its steps.
    loopback: list[float] = field(default_factory=list)

    @property
    def seconds(self) -> list[float]:
        """Of single steps."""
        return [second for block in self.blocks for second in block]

    @property
    def turns(self) -> list[float]:
        """The median of each block."""
        return [statistics.median(block) for block in self.blocks]

    @property
    def time(self) -> Distribution:
        """Of all steps."""
        return Distribution.of(self.seconds)


@dataclass(frozen=True)
class Way:
    """How the servers of a cluster send tensors. `settings` are environment variables."""

    name: str
    protocol: str = "grpc+rdma"
    planned: bool = False
    settings: Mapping[str, str] = field(default_factory=dict)

    @property
    def environment(self) -> dict[str, str]:
        """Of the servers' processes."""
        plan = {"RDMATENSOR_PLAN": "on" if self.planned else "off"}
        return environment(self.protocol) | plan | dict(self.settings)


GRPC = Way(STOCK, STOCK)
DYNAMIC = Way("dynamic")
STATIC = Way("static", planned=True)


class Cluster:
    """Servers, each in a process of its own."""

    def __init__(self, team: Team, way: Way, tasks: int = 2) -> None:
        self.way = way
        self._team = team
        cluster = json.dumps({"worker": free_addresses(tasks)})
        self.tasks = [
            team.start(
                f"{way.name}-task{index}",
                [_TASK, cluster, str(index), way.protocol],
                way.environment,
            )
            for index in range(tasks)
        ]

    @property
    def client(self) -> Child:
        """The task in whose process sessions run."""
        return self.tasks[0]

    def wait(self) -> None:
        """Until all servers have started. TaskFailed if they are not what they should be, too."""
        for task in self.tasks:
            self._team.wait(task, "ready", SILENCE_S)
            has_plugin = self._team.ask(task, "process")["plugin"]
            if has_plugin != (self.way.protocol != STOCK):
                state = "has the plugin loaded" if has_plugin else "has no plugin loaded"
                raise TaskFailed(task.name, state, task.log)

    def reset(self) -> None:
        """Have the plugin's counters begin anew; stock gRPC keeps none."""
        if self.way.protocol != STOCK:
            for task in self.tasks:
                self._team.ask(task, "reset")

    def use(self) -> Use:
        """What the tasks count since `reset`."""
        if self.way.protocol == STOCK:
            return Use([])
        return Use([self._team.ask(task, "stats") for task in self.tasks])


@dataclass(frozen=True)
class Use:
    """`rdmatensor.tensorflow.stats()` of each task of a cluster; empty for stock gRPC."""

    tasks: list[dict[str, Any]]

    @property
    def paths(self) -> Paths:
        """What all tasks sent."""
        return Paths.total(map(Paths.from_stats, self.tasks))

    def total(self, *names: str) -> int:
        """The counter at these keys, added up."""
        total = 0
        for stats in self.tasks:
            value: Any = stats
            for name in names:
                value = value[name]
            total += value
        return total


@dataclass(frozen=True)
class Result:
    """One case on one cluster: what building and warming up used, and the timed steps."""

    way: Way
    samples: Samples
    warm_up: Use
    timed: Use


def ratio(slow: Result, fast: Result) -> tuple[float, Distribution]:
    """How many times as long a step of `slow` takes: by the medians of all steps, and by those of the
    blocks of one turn, for the spread."""
    turns = zip(slow.samples.blocks, fast.samples.blocks, strict=True)
    return (
        slow.samples.time.median / fast.samples.time.median,
        Distribution.of([statistics.median(s) / statistics.median(f) for s, f in turns]),
    )


def same_losses(results: Sequence[Result]) -> bool | None:
    """Whether all clusters saw the same losses, bit for bit; None where there are no losses."""
    first, *others = (result.samples.losses for result in results)
    return all(other == first for other in others) if first else None


def measure(
    team: Team,
    clusters: Sequence[Cluster],
    build: dict[str, Any],
    steps: int,
    block: int,
    patience: float = SILENCE_S,
) -> list[Result]:
    """Have each cluster `build` a workload and time `steps` steps of it, in turns of `block`.

    Building and a block each take `patience` seconds at most; else TaskFailed.
    """
    warm_up = []
    for cluster in clusters:
        cluster.reset()
        team.ask(cluster.client, timeout=patience, **build)
        team.ask(cluster.client, "block", patience, steps=block * _WARM_UP_BLOCKS)
        warm_up.append(cluster.use())
        cluster.reset()
    clients = {cluster.way.name: cluster.client for cluster in clusters}
    samples = interleave(team, clients, steps, block, patience)
    results = [
        Result(cluster.way, samples[cluster.way.name], before, cluster.use())
        for cluster, before in zip(clusters, warm_up, strict=True)
    ]
    for cluster in clusters:
        team.ask(cluster.client, "close", SILENCE_S)
    return results


def interleave(
    team: Team,
    clients: dict[str, Child],
    steps: int,
    block: int,
    patience: float = SILENCE_S,
) -> dict[str, Samples]:
    """Blocks in turns, each turn begun by the next in order, so that drift falls on all alike."""
    samples = {name: Samples() for name in clients}
    for names in _turns(list(clients), -(-steps // block)):
        for name in names:
            start = _loopback_bytes()
            answer = team.ask(clients[name], "block", patience, steps=block)
            sample = samples[name]
            sample.steps += answer["steps"]
            sample.loopback.append((_loopback_bytes() - start) / answer["steps"])
            sample.blocks.append(answer["seconds"])
            sample.losses += answer["losses"]
    return samples


def _turns(names: list[str], count: int) -> Iterator[list[str]]:
    for turn in range(count):
        first = turn % len(names)
        yield names[first:] + names[:first]


def _loopback_bytes() -> int:
    """Bytes that the loopback interface has carried: what goes over gRPC on one machine shows here."""
    for line in Path("/proc/net/dev").read_text().splitlines():
        name, _, counters = line.partition(":")
        if name.strip() == "lo":
            return int(counters.split()[0])
    return 0


@dataclass
class Unused:
    """A local model with the plugin loaded and without, two processes of each kind."""

    samples: dict[str, Samples]
    facts: dict[str, dict[str, Any]]

    @staticmethod
    def wants_plugin(name: str) -> bool:
        """Whether the process called `name` is one of those with the plugin."""
        return name.startswith("with ")

    def _kind(self, plugin: bool) -> list[Samples]:
        return [s for name, s in self.samples.items() if self.wants_plugin(name) == plugin]

    def pooled(self, plugin: bool) -> Distribution:
        """Of both processes of a kind."""
        return Distribution.of([second for s in self._kind(plugin) for second in s.seconds])

    @property
    def difference(self) -> float:
        """Relative difference of the medians: positive if the plugin is slower."""
        return self.pooled(True).median / self.pooled(False).median - 1

    @property
    def noise(self) -> float:
        """The largest relative difference between the medians of two processes of one kind."""
        pairs = [[s.time.median for s in self._kind(plugin)] for plugin in (True, False)]
        return max(max(pair) / min(pair) - 1 for pair in pairs)


def measure_unused(team: Team, batch: int, steps: int, block: int) -> Unused:
    """The local training step, with the plugin loaded but no grpc+rdma server, and with it disabled."""
    disabled = environment(STOCK)
    enabled = {name: value for name, value in disabled.items() if name != "RDMATENSOR_DISABLE"}
    clients = {
        f"{kind} {number}": team.start(f"local-{kind}-{number}", [_TASK], variables)
        for number in (1, 2)
        for kind, variables in (("with", enabled), ("without", disabled))
    }
    for client in clients.values():
        team.wait(client, "ready", SILENCE_S)
        team.ask(client, "training", SILENCE_S, batch=batch)
        team.ask(client, "block", SILENCE_S, steps=block * _WARM_UP_BLOCKS)
    samples = interleave(team, clients, steps, block)
    facts = {name: team.ask(client, "process") for name, client in clients.items()}
    return Unused(samples, facts)
