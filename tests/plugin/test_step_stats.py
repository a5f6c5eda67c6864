# SPDX-License-Identifier: Apache-2.0
"""RunMetadata of a step shows the tensors that came over channels, as it shows those that came by gRPC."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf

from support.clusters import STEP_S, Cluster, within
from support.graphs import TASK0, TASK1, session, v1

SIZES = (10, 1000, 500_000)
TRANSFERS = 3 * len(SIZES)  # there, back, and to the client's task
TRIES = 10


def _build() -> list[Any]:
    """Tensors of several sizes, there and back."""
    with tf.device(TASK1):
        there = [tf.fill([size], tf.random.uniform([])) for size in SIZES]
    with tf.device(TASK0):
        back = [each + 1 for each in there]
    with tf.device(TASK1):
        return [tf.reduce_max(each) for each in back]


def _received(cluster: Cluster) -> list[tuple[str, str, int]]:
    """The receiving device, the label without the rate, and the bytes of each tensor that a step received."""
    options = v1.RunOptions(trace_level=v1.RunOptions.FULL_TRACE)
    metadata = v1.RunMetadata()
    entries = []
    with session(cluster, _build) as steps:
        for _ in range(3):  # places are known by then
            steps.run(steps.built)
        within(STEP_S, lambda: steps.raw.run(steps.built, options=options, run_metadata=metadata))
        for device in metadata.step_stats.dev_stats:
            for node in device.node_stats:
                if node.node_name != "RecvTensor":
                    continue
                assert node.all_end_rel_micros > 0
                (output,) = node.output
                allocated = output.tensor_description.allocation_description.requested_bytes
                # "[1.9MB] [17.2Gb/s] edge_16_Fill_2 from DEVICE to DEVICE"
                label = re.sub(r"\[[^]]*\] ", "", node.timeline_label)
                entries.append((device.device, label, allocated))
        # Nothing is kept for steps that nobody asks about.
        steps.run(steps.built)
    return sorted(entries)


@pytest.mark.parametrize("control", ["auto", "grpc"])
def test_transfers_as_over_grpc(tmp_path: Path, control: str) -> None:
    folders = [tmp_path / name for name in ("rdma", "grpc")]
    for folder in folders:
        folder.mkdir()
    ours = Cluster.pair(folders[0], {"RDMATENSOR_CONTROL": control})
    try:
        shown = _received(ours)
    finally:
        ours.close()
    stock = Cluster(["grpc", "grpc"], folders[1])
    try:
        # TensorFlow leaves out what it has not noted yet when the step ends.
        for _ in range(TRIES):
            expected = _received(stock)
            if len(expected) == TRANSFERS:
                break
    finally:
        stock.close()
    assert {size * 4 for size in SIZES} <= {each[2] for each in shown}
    assert shown == expected
