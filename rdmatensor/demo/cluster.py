# SPDX-License-Identifier: Apache-2.0
"""Runs one training in processes of its own."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rdmatensor._tools.processes import reserved_addresses
from rdmatensor.bench.turns import Distribution
from rdmatensor.demo import member
from rdmatensor.demo.launch import Child, Team
from rdmatensor.demo.paths import STOCK, Paths

# The longest silence is that of all tasks importing TensorFlow at once.
SILENCE_S = 120.0


@dataclass(frozen=True)
class Options:
    """What is the same for every protocol."""

    steps: int
    workers: int
    hidden: int
    hosts: str = ""
    """The hosts as `rdmatensor launch --hosts` takes them; "" is this machine."""
    ssh: str = ""


@dataclass(frozen=True)
class Outcome:
    """The outcome of one run. `paths` is None for TensorFlow's own transport, which counts nothing."""

    protocol: str
    step_seconds: list[float]
    losses: list[float]
    test_loss: float
    accuracy: float
    paths: Paths | None

    @property
    def step_time(self) -> Distribution:
        """The times of the steps after the warm-up."""
        return Distribution.of(self.step_seconds)

    def as_json(self) -> dict[str, Any]:
        """Returns all fields, with the losses of all steps."""
        return {
            "protocol": self.protocol,
            "step_time": self.step_time.as_json(),
            "step_seconds": self.step_seconds,
            "losses": self.losses,
            "test_loss": self.test_loss,
            "accuracy": self.accuracy,
            "paths": self.paths.as_json() if self.paths else None,
        }


Report = Callable[[int, float], None]


def environment(protocol: str) -> dict[str, str]:
    """Returns the tasks' environment. With stock gRPC the plugin is not even loaded."""
    variables = {"CUDA_VISIBLE_DEVICES": "-1", "PYTHONUNBUFFERED": "1"}
    if protocol == STOCK:
        variables["RDMATENSOR_DISABLE"] = "1"
    return variables


def run(options: Options, protocol: str, logs: Path, report: Report) -> Outcome:
    """Starts a parameter server, workers and a chief, trains, and ends them all.

    `report(step, loss)` is called as the training goes on. TaskFailed if any task fails or falls silent.
    """
    if options.hosts:
        return _run_on_hosts(options, protocol, logs, report)
    with reserved_addresses(options.workers + 2) as addresses, Team(logs) as team:
        cluster = {"chief": addresses[:1], "ps": addresses[1:2], "worker": addresses[2:]}
        tasks = _start_servers(team, cluster, protocol)
        chief = _start_chief(team, cluster, protocol, options)
        for task in tasks:
            team.wait(task, "ready", SILENCE_S)
        result = _follow(team, chief, report)
        counts = [result.pop("paths")]
        counts += [team.ask(task, "paths") for task in tasks]
    return _outcome(protocol, result, counts)


def _run_on_hosts(options: Options, protocol: str, logs: Path, report: Report) -> Outcome:
    """The same with `rdmatensor launch`, whose output has the events of all tasks."""
    tasks = options.workers + 2
    per_host = -(-tasks // len(options.hosts.split(",")))
    words = ["--hosts", options.hosts, "--tasks-per-host", str(per_host), "--protocol", protocol]
    words += ["--ssh", options.ssh] if options.ssh else []
    words += ["--ps", "1", "-n", str(options.workers), member.__file__]
    asked = json.dumps({"steps": options.steps, "hidden": options.hidden})
    with Team(logs) as team:
        launcher = team.start(
            "launch", ["-m", "rdmatensor", "launch", *words, asked], environment(protocol)
        )
        result = _follow(team, launcher, report)
        counts = [result.pop("paths")]
        counts += [team.wait(launcher, "paths", SILENCE_S) for _ in range(tasks - 1)]
    return _outcome(protocol, result, counts)


def _outcome(protocol: str, result: dict[str, Any], counts: list[dict[str, Any]]) -> Outcome:
    paths = None if protocol == STOCK else Paths.total(Paths.from_json(count) for count in counts)
    return Outcome(protocol=protocol, paths=paths, **result)


def _start_servers(team: Team, cluster: Mapping[str, list[str]], protocol: str) -> list[Child]:
    return [
        team.start(
            f"{job}{index}",
            ["-m", "rdmatensor.demo.task", json.dumps(cluster), job, str(index), protocol],
            environment(protocol),
        )
        for job in ("ps", "worker")
        for index in range(len(cluster[job]))
    ]


def _start_chief(
    team: Team, cluster: Mapping[str, list[str]], protocol: str, options: Options
) -> Child:
    asked = {
        "cluster": cluster,
        "protocol": protocol,
        "steps": options.steps,
        "hidden": options.hidden,
    }
    argv = ["-m", "rdmatensor.demo.train", json.dumps(asked)]
    return team.start("chief", argv, environment(protocol))


def _follow(team: Team, chief: Child, report: Report) -> dict[str, Any]:
    """Passes progress on until the results come."""
    while True:
        event = team.next_event(chief, SILENCE_S)
        kind = event.pop("event")
        if kind == "result":
            return event
        report(event["step"], event["loss"])
