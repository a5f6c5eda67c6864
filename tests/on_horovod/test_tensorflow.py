# SPDX-License-Identifier: Apache-2.0
"""rdmatensor.horovod.tensorflow: operations, tapes, and what goes wrong."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import numpy as np
import pytest

from on_horovod.programs import HERE, PATIENCE_S, launched, trained
from support import warm
from support.ports import free_ports

pytestmark = pytest.mark.timeout(300)


@pytest.mark.parametrize(
    ("program", "size"), [("operations.py", 2), ("corners.py", 2), ("sets.py", 3)]
)
def test_operations(program: str, size: int) -> None:
    done = launched(size, HERE / program)
    assert done.returncode == 0, done.stderr[-4000:]
    assert done.stdout.count('"OK"') == size


def test_loop_by_hand_equals_one_process(tmp_path: Path) -> None:
    (alone,) = trained(1, tmp_path, HERE / "loop.py", str(tmp_path))
    for each in trained(2, tmp_path, HERE / "loop.py", str(tmp_path)):
        np.testing.assert_allclose(each["values"], alone["values"], atol=1e-5)


def test_killed_peer_is_an_internal_error(tmp_path: Path) -> None:
    (port,) = free_ports(1)
    place = {
        "WORLD_SIZE": "2",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "TF_CONFIG": "",
    }
    command = [warm.python(), str(HERE / "loop.py"), str(tmp_path), "die"]
    # The launcher would end the other process, too.
    processes = [
        subprocess.Popen(command, stdout=subprocess.PIPE, env=os.environ | place | {"RANK": rank})
        for rank in ("0", "1")
    ]
    try:
        found = processes[0].communicate(timeout=PATIENCE_S)[0].decode()
    finally:
        for each in processes:
            each.kill()
            each.communicate()
    assert "lost:" in found and "member 1" in found
