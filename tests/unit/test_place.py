# SPDX-License-Identifier: Apache-2.0
"""`rdmatensor place` with the variables of schedulers. No TensorFlow is needed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest

SECONDS = 60.0
SHOW = [sys.executable, "-c", "import os, sys; print(os.environ['TF_CONFIG']); print(sys.argv[1:])"]
# What a TFJob's pod finds.
KUBEFLOW = {
    "cluster": {"worker": ["train-worker-0.default.svc:2222", "train-worker-1.default.svc:2222"]},
    "task": {"type": "worker", "index": 1},
    "environment": "cloud",
}


def place(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    ranks = ("SLURM_", "OMPI_", "PMI_", "JOB_COMPLETION_", "TF_CONFIG")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(ranks)}
    return subprocess.run(
        [sys.executable, "-m", "rdmatensor", "place", *arguments],
        env=kept | variables,
        capture_output=True,
        text=True,
        timeout=SECONDS,
    )


def told(done: subprocess.CompletedProcess[str]) -> tuple[Any, str]:
    """TF_CONFIG, and the arguments of the program."""
    assert done.returncode == 0, done.stderr
    config, arguments = done.stdout.splitlines()
    return json.loads(config), arguments


@pytest.mark.parametrize(
    "variable", ["SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "JOB_COMPLETION_INDEX"]
)
def test_all_ranks_are_workers(variable: str) -> None:
    config, arguments = told(place("a,b,a", *SHOW, "--x", "--ps", **{variable: "2"}))
    assert config == {
        "cluster": {"worker": ["a:2222", "b:2222", "a:2223"]},
        "task": {"type": "worker", "index": 2},
        "rpc_layer": "grpc+rdma",
    }
    assert arguments == "['--x', '--ps']", "what follows the program is the program's"


@pytest.mark.parametrize(
    ("rank", "task"), [("0", ("chief", 0)), ("1", ("ps", 0)), ("2", ("worker", 0))]
)
def test_with_parameter_servers_rank_0_is_the_chief(rank: str, task: tuple[str, int]) -> None:
    options = ["--ps", "1", "--port", "3000", "--protocol", "grpc"]
    config, _ = told(place(*options, "a,b,c", *SHOW, SLURM_PROCID=rank))
    assert config["cluster"] == {"chief": ["a:3000"], "ps": ["b:3000"], "worker": ["c:3000"]}
    assert config["task"] == {"type": task[0], "index": task[1]}
    assert config["rpc_layer"] == "grpc"


def test_a_launchers_own_cluster_gets_the_protocol() -> None:
    config, arguments = told(place("--keep", *SHOW, "1", TF_CONFIG=json.dumps(KUBEFLOW)))
    assert config == KUBEFLOW | {"rpc_layer": "grpc+rdma"}
    assert arguments == "['1']"
    named = KUBEFLOW | {"rpc_layer": "grpc"}
    assert told(place("--keep", *SHOW, TF_CONFIG=json.dumps(named)))[0] == named


@pytest.mark.parametrize(
    ("arguments", "variables", "words"),
    [
        (["a,b", "true"], {}, "none of SLURM_PROCID"),
        (["a,b", "true"], {"PMI_RANK": "2"}, "rank 2 of 2 hosts"),
        (["a,b", "true"], {"PMI_RANK": "-1"}, "rank -1 of 2 hosts"),
        (["a,b", "true"], {"SLURM_PROCID": "x"}, "SLURM_PROCID is 'x'"),
        (["a,,b", "true"], {"PMI_RANK": "0"}, "a host without a name"),
        (["--ps", "1", "a,b", "true"], {"PMI_RANK": "0"}, "3 are needed"),
        (["a,b"], {"PMI_RANK": "0"}, "expected PROGRAM"),
        ([], {"PMI_RANK": "0"}, "expected HOSTs and PROGRAM"),
        (["--keep", "true"], {}, "--keep needs TF_CONFIG"),
        (["--keep", "true"], {"TF_CONFIG": "{"}, "TF_CONFIG is not JSON"),
        (["--keep", "true"], {"TF_CONFIG": "[1]"}, "TF_CONFIG is not a JSON object"),
        (["a", "/nowhere/x"], {"PMI_RANK": "0"}, "cannot run /nowhere/x: No such file"),
    ],
)
def test_wrong_use_is_explained(
    arguments: list[str], variables: dict[str, str], words: str
) -> None:
    done = place(*arguments, **variables)
    assert done.returncode in (1, 2)
    assert words in done.stderr and "Traceback" not in done.stderr
