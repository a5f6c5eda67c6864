# SPDX-License-Identifier: Apache-2.0
"""Workers that each have the device of pluggable_device.c."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from support.clusters import Cluster
from support.graphs import TASK0, TASK1

DEVICE0, DEVICE1 = TASK0 + "/device:TEST_DEVICE:0", TASK1 + "/device:TEST_DEVICE:0"
CPU0, CPU1 = TASK0 + "/device:CPU:0", TASK1 + "/device:CPU:0"
UNPLANNED = {"RDMATENSOR_PLAN": "off"}


def two_devices(
    library: Path,
    folder: Path,
    settings: dict[str, str],
    protocols: Sequence[str] = ("grpc+rdma", "grpc+rdma"),
) -> Cluster:
    """Two workers with the same settings."""
    both = settings | {"TEST_DEVICE_LIBRARY": str(library)}
    return Cluster(protocols, folder, {0: both, 1: both})
