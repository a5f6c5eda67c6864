# SPDX-License-Identifier: Apache-2.0
"""Runs the cases of the TensorFlow benchmarks on clusters that take turns."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from networks import LOOPBACK, Network
from paths import STOCK, Paths
from rdmatensor.bench import turns
from rdmatensor.bench.turns import Distribution, rotated, turn_ratios
from team import SILENCE_S, Child, TaskFailed, Team, environment, free_addresses
from tf_cases import ALONE

FLOOR = "nothing remote"
_FOLDER = Path(__file__).parent
_WARM_UP_BLOCKS = 2


@dataclass
class Samples(turns.Samples):
    """The step times of one case on one cluster, or in one process."""

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
        """The environment of the servers' processes."""
        plan = {"RDMATENSOR_PLAN": "on" if self.planned else "off"}
        return environment(self.protocol) | plan | dict(self.settings)

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
    """Servers, each in a process of its own that runs `program`. The first one is the client's, too.

    All but the client's are at the network's other end. Where nothing is remote, there is only one, the last.
    """

    CLIENT = 0

    def __init__(
        self,
        team: Team,
        way: Way,
        jobs: Sequence[str] = ("worker",) * 2,
        program: str = "tf_task",
        network: Network = LOOPBACK,
    ) -> None:
        self.way = way
        self.network = network
        self._team = team
        jobs = jobs[-1:] if way == LOCAL else jobs
        cluster: dict[str, list[str]] = {}
        places = []
        for number, (job, address) in enumerate(zip(jobs, free_addresses(len(jobs)), strict=True)):
            here = number == self.CLIENT % len(jobs)
            places.append((job, str(len(cluster.setdefault(job, []))), here))
            host = network.near if here else network.host
            cluster[job].append(f"{host}:{address.rpartition(':')[2]}")
        script = [str(_FOLDER / f"{program}.py"), json.dumps(cluster)]
        self.tasks = [
            team.start(
                f"{way.name.replace('/', '-')}-of-{len(jobs)}-{job}{index}",
                [*script, job, index, way.protocol],
                way.environment | network.environment,
                () if here else network.prefix,
            )
            for job, index, here in places
        ]

    @property
    def client(self) -> Child:
        """The task in whose process sessions run, or steps are called."""
        return self.tasks[self.CLIENT]

    def ask(self, command: str, patience: float = SILENCE_S, **fields: Any) -> dict[str, Any]:
        """The client's answer to a command. TaskFailed if there is none after `patience` seconds."""
        return self._team.ask(self.client, command, patience, **fields)

    def ask_all(
        self, command: str, patience: float = SILENCE_S, **fields: Any
    ) -> list[dict[str, Any]]:
        """The answers of all tasks, which work on the command at the same time."""
        for task in self.tasks:
            task.send(command, **fields)
        return [self._team.wait(task, command, patience) for task in self.tasks]

    def wait(self) -> None:
        """Wait until all servers have started. TaskFailed if the plugin is missing, or loaded by mistake."""
        for task in self.tasks:
            self._team.wait(task, "ready", SILENCE_S)
        for task, facts in zip(self.tasks, self.ask_all("process"), strict=True):
            if facts["plugin"] != (self.way.protocol != STOCK):
                state = "has the plugin loaded" if facts["plugin"] else "has no plugin loaded"
                raise TaskFailed(task.name, state, task.log)

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


class Trio(Cluster):
    """A parameter server, a worker and a chief, which is the client."""

    CLIENT = -1

    def __init__(self, team: Team, way: Way, program: str) -> None:
        super().__init__(team, way, ("ps", "worker", "chief"), program)


@dataclass(frozen=True)
class Use:
    """`rdmatensor.tensorflow.stats()` of each task of a cluster; empty for stock gRPC."""

    tasks: list[dict[str, Any]]

    @property
    def paths(self) -> Paths:
        """What all tasks sent."""
        return Paths.total(map(Paths.from_stats, self.tasks))

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


def ratio(slow: Result, fast: Result) -> tuple[float, Distribution]:
    """How many times as long a step of `slow` takes: by the medians, and in single turns."""
    return (
        slow.samples.spread.median / fast.samples.spread.median,
        turn_ratios(slow.samples.turns, fast.samples.turns),
    )


def same_losses(results: Sequence[Result]) -> bool | None:
    """Whether all clusters saw the same losses, bit for bit; None where there are no losses."""
    first, *others = (result.samples.losses for result in results)
    return all(other == first for other in others) if first else None


def measure(
    clusters: Sequence[Cluster],
    build: dict[str, Any],
    steps: int,
    block: int,
    patience: float = SILENCE_S,
) -> list[Result]:
    """Have each cluster build a workload, and time `steps` steps of it in turns of `block` steps.

    `build` is a command with its fields. TaskFailed if building or a block takes over `patience` seconds.
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
            cluster.way,
            samples[cluster.way.name],
            before,
            cluster.use(),
            cluster.cpu_seconds() - idle,
        )
        for cluster, before, idle in zip(clusters, warm_up, began, strict=True)
    ]
    for cluster in clusters:
        cluster.ask("close")
    return results


def interleave(
    asked: Mapping[str, Callable[..., dict[str, Any]]],
    steps: int,
    block: int,
    patience: float = SILENCE_S,
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


@dataclass
class Unused:
    """A local model with the plugin loaded and without it, two processes of each kind."""

    samples: dict[str, Samples]
    facts: dict[str, dict[str, Any]]

    @staticmethod
    def wants_plugin(name: str) -> bool:
        """Whether the process `name` should have the plugin loaded."""
        return name.startswith("with ")

    def _kind(self, plugin: bool) -> list[Samples]:
        return [s for name, s in self.samples.items() if self.wants_plugin(name) == plugin]

    def _median(self, plugin: bool) -> float:
        return Distribution.of([second for s in self._kind(plugin) for second in s.all]).median

    @property
    def difference(self) -> float:
        """Relative difference of the medians: positive if the plugin is slower."""
        return self._median(True) / self._median(False) - 1

    @property
    def noise(self) -> float:
        """The largest relative difference between the medians of two processes of one kind."""
        pairs = [[s.spread.median for s in self._kind(plugin)] for plugin in (True, False)]
        return max(max(pair) / min(pair) - 1 for pair in pairs)


def measure_unused(team: Team, batch: int, steps: int, block: int) -> Unused:
    """Time the local training step with the plugin loaded but not used, and with the plugin disabled."""
    disabled = environment(STOCK)
    enabled = {name: value for name, value in disabled.items() if name != "RDMATENSOR_DISABLE"}
    processes = {
        f"{kind} {number}": team.start(
            f"local-{kind}-{number}", [str(_FOLDER / "tf_task.py")], variables
        )
        for number in (1, 2)
        for kind, variables in (("with", enabled), ("without", disabled))
    }
    asked = {name: partial(team.ask, process) for name, process in processes.items()}
    for name, process in processes.items():
        team.wait(process, "ready", SILENCE_S)
        asked[name]("training", SILENCE_S, batch=batch)
        asked[name]("block", SILENCE_S, steps=block * _WARM_UP_BLOCKS)
    samples = interleave(asked, steps, block)
    return Unused(samples, {name: ask("process") for name, ask in asked.items()})
