# SPDX-License-Identifier: Apache-2.0
"""The programs of examples/, started by `rdmatensor launch`: TensorFlow's own tutorials of each strategy.

Over grpc+rdma they compute what they compute over grpc, and what TensorFlow sends does not go by gRPC.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from support import ROOT, warm

pytestmark = pytest.mark.timeout(400)
EXAMPLES = ROOT / "examples"
SECONDS = 180
KEPT_BY_TENSORFLOW = {"string", "variant", "resource"}
NUMBER = re.compile(r"loss (\S+?)(?:,|$)")


class Run(NamedTuple):
    """What came of one run."""

    lines: list[str]
    """That the tasks printed; in order for each task."""
    stats: dict[str, Any]
    """By task."""

    def losses(self, task: str) -> list[float]:
        found = (NUMBER.search(line) for line in self.lines if line.startswith(f"[{task}] "))
        return [float(each[1]) for each in found if each]


def start(python: str, folder: Path, protocol: str, *arguments: str) -> subprocess.Popen[str]:
    """Of the arguments, the last is the example."""
    folder.mkdir()
    *options, example = arguments
    told = [
        str(Path(__file__).with_name("told.py")),
        str(folder),
        str(EXAMPLES / example),
        str(folder / "results"),
    ]
    return subprocess.Popen(
        [python, "-m", "rdmatensor", "launch", "--protocol", protocol, *options, *told],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def end(process: subprocess.Popen[str], folder: Path) -> Run:
    out, errors = process.communicate(timeout=SECONDS)
    assert process.returncode == 0, out + errors[-6000:]
    stats = {path.stem: json.loads(path.read_text()) for path in folder.glob("*.json")}
    return Run(sorted(out.splitlines(), key=lambda line: line.split("] ")[0]), stats)


def over_both(python: str, folder: Path, *arguments: str) -> tuple[Run, Run]:
    """The same over grpc and over grpc+rdma, at the same time: much of it is waiting."""
    folders = [folder / "grpc", folder / "rdma"]
    protocols = ["grpc", "grpc+rdma"]
    both = [start(python, *each, *arguments) for each in zip(folders, protocols, strict=True)]
    stock, rdma = (end(*each) for each in zip(both, folders, strict=True))
    return stock, rdma


def check_tensors(run: Run, tasks: int, least: int) -> None:
    """What tasks sent each other, at least so many bytes, went by us, but for what has no plain bytes."""
    assert len(run.stats) == tasks
    sent = 0
    for task, stats in run.stats.items():
        assert set(stats["rpc_reasons"]) <= KEPT_BY_TENSORFLOW, (task, stats)
        sent += sum(use["sent_bytes"] for path, use in stats["paths"].items() if path != "rpc")
    assert sent >= least, run.stats


@pytest.fixture(scope="module")
def keras_2() -> str:
    pytest.importorskip("tf_keras", reason="tf_keras is not installed")
    return warm.python(TF_USE_LEGACY_KERAS="1")


def check_collectives(run: Run, workers: int, least: int) -> None:
    """At least so many bytes of gradients were reduced by each worker, without gRPC."""
    assert len(run.stats) == workers
    for task, stats in run.stats.items():
        collectives = stats["collectives"]
        assert collectives["by_tensorflow"] == {}, (task, collectives)
        assert collectives["served_by_grpc"]["bytes"] == 0, (task, collectives)
        assert collectives["failed"] == 0, (task, collectives)
        assert collectives["operations"]["all_reduce"]["bytes"] >= least, (task, collectives)
        assert {group["transport"] for group in collectives["groups"]} == {"rdmatensor"}


FLOAT = 4
WEIGHTS = FLOAT * (64 * 128 + 128 * 10)  # of the model of most examples


def test_fit_on_several_workers(keras_2: str, tmp_path: Path) -> None:
    stock, rdma = over_both(keras_2, tmp_path, "-n", "2", "multi_worker_keras.py")
    # The sum of two numbers does not depend on their order.
    assert rdma.lines == stock.lines
    first, *_, last = rdma.losses("worker 0")
    assert last < first / 4
    assert rdma.losses("worker 1") == rdma.losses("worker 0")
    for worker in (0, 1):
        assert any(f"[worker {worker}] saved and loaded: the same" in line for line in rdma.lines)
    check_tensors(rdma, 2, least=0)
    check_collectives(rdma, 2, least=60 * WEIGHTS)


def test_custom_loop_on_several_workers(tmp_path: Path) -> None:
    stock, rdma = over_both(warm.python(), tmp_path, "-n", "2", "multi_worker_custom_loop.py")
    assert rdma.lines == stock.lines
    first, *_, last = rdma.losses("worker 0")
    assert last < first / 4
    assert rdma.losses("worker 1") == rdma.losses("worker 0")
    check_tensors(rdma, 2, least=0)
    check_collectives(rdma, 2, least=60 * WEIGHTS)


def check_learning(runs: tuple[Run, Run], *tasks: str) -> None:
    """Workers that do not wait for each other never compute the same twice, over any protocol.

    One may begin when another has ended, with a model that has learnt already. So the worst of the first
    losses and the best of the last ones count.
    """
    for run in runs:
        losses = [run.losses(task) for task in tasks]
        assert min(each[-1] for each in losses) < max(each[0] for each in losses) / 2, run.lines


def test_fit_with_parameter_servers(keras_2: str, tmp_path: Path) -> None:
    both = over_both(keras_2, tmp_path, "-n", "2", "--ps", "2", "parameter_server_keras.py")
    check_learning(both, "chief 0")
    check_tensors(both[1], 5, least=80 * 2 * WEIGHTS)


def test_custom_loop_with_parameter_servers(tmp_path: Path) -> None:
    example = ("-n", "2", "--ps", "2", "parameter_server_custom_loop.py")
    both = over_both(warm.python(), tmp_path, *example)
    check_learning(both, "chief 0")
    rows = 64 * 8 * 32 * FLOAT  # looked up in a step
    check_tensors(both[1], 5, least=120 * 2 * rows)


def test_between_graph(tmp_path: Path) -> None:
    example = ("-n", "2", "--ps", "1", "--no-chief", "between_graph.py")
    both = over_both(warm.python(), tmp_path, *example)
    check_learning(both, "worker 0", "worker 1")
    check_tensors(both[1], 3, least=2 * 60 * 2 * WEIGHTS)


def test_as_users_start_it(tmp_path: Path) -> None:
    """Nothing is imported beforehand."""
    folder = tmp_path / "run"
    options = ("-n", "1", "--ps", "1", "--no-chief", "between_graph.py")
    run = end(start(sys.executable, folder, "grpc+rdma", *options), folder)
    assert run.losses("worker 0")
    check_tensors(run, 2, least=60 * 2 * WEIGHTS)
