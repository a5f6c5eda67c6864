# SPDX-License-Identifier: Apache-2.0
"""`rdmatensor launch --place` with the variables of schedulers. No TensorFlow is needed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
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
        [sys.executable, "-m", "rdmatensor", "launch", "--place", *arguments],
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
    config, _ = told(place("a,b,c", *options, *SHOW, SLURM_PROCID=rank))
    assert config["cluster"] == {"chief": ["a:3000"], "ps": ["b:3000"], "worker": ["c:3000"]}
    assert config["task"] == {"type": task[0], "index": task[1]}
    assert config["rpc_layer"] == "grpc"


def test_scripts_and_modules_run_in_this_python(tmp_path: Path) -> None:
    script = tmp_path / "show.py"
    script.write_text(SHOW[2])
    for program in ([str(script)], SHOW[1:]):
        config, arguments = told(place("a,b", *program, "1", PMI_RANK="1"))
        assert config["task"] == {"type": "worker", "index": 1} and arguments == "['1']"


def test_a_launchers_own_cluster_gets_the_protocol() -> None:
    config, arguments = told(place("TF_CONFIG", *SHOW, "1", TF_CONFIG=json.dumps(KUBEFLOW)))
    assert config == KUBEFLOW | {"rpc_layer": "grpc+rdma"}
    assert arguments == "['1']"
    named = KUBEFLOW | {"rpc_layer": "grpc"}
    assert told(place("TF_CONFIG", *SHOW, TF_CONFIG=json.dumps(named)))[0] == named


@pytest.mark.parametrize(
    ("arguments", "variables", "words"),
    [
        (["a,b", "true"], {}, "none of SLURM_PROCID"),
        (["a,b", "true"], {"PMI_RANK": "2"}, "rank 2 of 2 hosts"),
        (["a,b", "true"], {"PMI_RANK": "-1"}, "rank -1 of 2 hosts"),
        (["a,b", "true"], {"SLURM_PROCID": "x"}, "SLURM_PROCID is 'x'"),
        (["a,,b", "true"], {"PMI_RANK": "0"}, "a host without a name"),
        (["a,b", "--ps", "1", "true"], {"PMI_RANK": "0"}, "3 are needed"),
        (["", "true"], {"PMI_RANK": "0"}, "a host without a name"),
        (["a,b"], {"PMI_RANK": "0"}, "Missing argument 'SCRIPT"),
        (["a,b", "-n", "2", "true"], {"PMI_RANK": "0"}, "--workers starts tasks"),
        (["a,b", "--no-chief", "true"], {"PMI_RANK": "0"}, "--chief starts tasks"),
        (["TF_CONFIG", "true"], {}, "TF_CONFIG is not set: name the hosts"),
        (["TF_CONFIG", "true"], {"TF_CONFIG": "{"}, "TF_CONFIG is not JSON"),
        (["TF_CONFIG", "true"], {"TF_CONFIG": "[1]"}, "TF_CONFIG is not a JSON object"),
        (["a", "/nowhere/x"], {"PMI_RANK": "0"}, "cannot run /nowhere/x: No such file"),
    ],
)
def test_wrong_use_is_explained(
    arguments: list[str], variables: dict[str, str], words: str
) -> None:
    done = place(*arguments, **variables)
    assert done.returncode in (1, 2)
    assert words in done.stderr and "Traceback" not in done.stderr
