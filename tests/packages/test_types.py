# SPDX-License-Identifier: Apache-2.0
"""The installed package has types, and they say what there is."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

# A program of somebody who uses rdmatensor with types. What is marked is wrong, for that reason.
CONSUMER = """\
from __future__ import annotations

import numpy as np
import numpy.typing as npt

import graph_analyzer
import rdmatensor
import rdmatensor.tensorflow as plugin


async def both(device: rdmatensor.Device, address: str) -> npt.NDArray[np.float32]:
    region: rdmatensor.Region = device.allocate((4, 4), "float32", name="weights")
    remote: rdmatensor.RemoteDevice = device.connect(address, timeout=1.0)
    theirs = remote.region("weights")
    done: rdmatensor.Transfer = theirs.write(region.array, offset=16, notify=7)
    await done
    done.wait(timeout=0.5)
    notification = device.next_notification(timeout=1)
    print(notification.source.name.upper(), notification.payload.decode())
    with rdmatensor.Group(device, rank=0, size=1) as group:
        group.all_reduce(region.array, op="sum")
        group.all_reduce(region.array, op="average")  # wrong: arg-type
    theirs.write(region.array, offset="16")  # wrong: arg-type
    done.wait("soon")  # wrong: arg-type
    device.conect(address)  # wrong: attr-defined
    return np.zeros(4, np.float32)


def look() -> int:
    if not plugin.loaded():
        print(plugin.why_not().upper())
    stats = plugin.stats()
    print(stats["paths"]["statik"])  # wrong: typeddict-item
    plugin.use(policy="rdma", transport=["verbs"], require=True)
    plugin.use(policy="always")  # wrong: arg-type
    sent: str = stats["paths"]["static"]["sent_bytes"]  # wrong: assignment
    print(sent, rdmatensor.config.get_int("DEADLINE_MS") + 1)
    return stats["paths"]["static"]["sent_bytes"]


def analyse(model: object) -> float:
    plan = graph_analyzer.analyze(model, strategy=graph_analyzer.PlacedOn(ps=2, workers=2))
    plan.to_html("plan.html")
    plan.to_htm("plan.html")  # wrong: attr-defined
    return plan.static_share


def fail() -> None:
    try:
        rdmatensor.empty((2, 2), "float32")
    except rdmatensor.DeviceError as error:
        wrong: int = error.hint  # wrong: attr-defined
        print(wrong)
"""


def test_strict_consumer(tmp_path: Path) -> None:
    """As a user's: the program is his, and the package where pip put it."""
    pytest.importorskip("mypy", reason="no mypy")
    program = tmp_path / "consumer.py"
    program.write_text(CONSUMER)
    done = subprocess.run(
        [
            *(sys.executable, "-m", "mypy", "--strict", "--config-file=", "--no-error-summary"),
            *("--cache-dir", tmp_path / "cache", program.name),
        ],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode in (0, 1), done.stderr
    found = re.findall(r"^consumer\.py:(\d+): error: .*\[([\w-]+)\]$", done.stdout, re.MULTILINE)
    wanted = [
        (str(number), line.split("# wrong: ")[1])
        for number, line in enumerate(CONSUMER.splitlines(), 1)
        if "# wrong: " in line
    ]
    assert found == wanted, done.stdout
