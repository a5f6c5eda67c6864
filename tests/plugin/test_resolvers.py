# SPDX-License-Identifier: Apache-2.0
"""TensorFlow's cluster resolvers with rpc_layer="grpc+rdma", after use()."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

from support import warm


def test_each_starts_a_server_with_the_protocol() -> None:
    run = subprocess.run(
        [warm.python(), Path(__file__).with_name("resolvers.py")],
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert run.returncode == 0, run.stderr[-4000:]
    said = json.loads(run.stdout.splitlines()[-1])
    assert "/job:worker/replica:0/task:0 is running already" in said.pop("too_late")
    assert said.pop("policy") == "rdma", "use(require=True) leaves no way to fall back"
    assert list(said) == ["tf_config", "tf_config_argument", "simple", "slurm", "kubernetes"]
    for count, (name, each) in enumerate(said.items(), 1):
        assert each["servers"] == count, name
        assert each["address"].endswith(f":{each['port']}"), name
        assert each["target"].startswith("grpc://"), name
        assert each["target"].endswith(f":{each['port']}"), name
        assert each["task"] == ["worker", 0], name
