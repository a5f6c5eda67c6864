# SPDX-License-Identifier: Apache-2.0
"""What a failed step leaves behind: lent memory, the peer's mapped memory, places and descriptors go."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf

from support.clusters import Cluster
from support.graphs import TASK0, TASK1, cross, session, v1
from support.waits import until

MIB = 1 << 20
# Nothing fails, but devices are wrapped, so that faults can be put in force later.
WRAPPED = "corrupt_write=#1000000000"
ENDED = (tf.errors.UnavailableError, tf.errors.AbortedError, tf.errors.CancelledError)
# What fails, at which task, and RDMATENSOR_PLAN. The arena of task 1 grows in the step, so that task 0 opens
# a region for it.
FAULTS = {
    "region_that_cannot_be_opened": ("map=#1", 0, "off"),
    "channel_that_breaks_at_the_sender": ("break=0.05", 1, "off"),
    "channel_with_places": ("break=0.05", 1, "on"),
    "read_that_fails": ("unmapped=1,fail=#2", 0, "off"),
    "write_that_fails": ("unmapped=1,fail=#2", 1, "on"),
    "read_that_is_refused": ("unmapped=1,post=#2", 0, "off"),
}


def _maps(cluster: Cluster, index: int) -> int:
    """Mappings of memory that processes share, but for those of the task's own arena."""
    pid = cluster.tasks[index].ask("pid")
    lines = Path(f"/proc/{pid}/maps").read_text().splitlines()
    own = cluster.stats(index)["arena"]["regions"]
    return sum("/memfd:rdmatensor" in line for line in lines) - int(own)


def _holdings(cluster: Cluster, index: int) -> dict[str, int]:
    stats = cluster.stats(index)
    return {
        "bytes of the arena": stats["arena"]["used_bytes"],
        "bytes of places": stats["plan"]["place_bytes"],
    }


def _large() -> Any:
    """From task 1 to task 0, and there until all have come: more than a first region has."""
    with tf.device(TASK1):
        value = v1.placeholder(tf.float32, [])
        several = [tf.fill([MIB // 4], value + i) for i in range(80)]
    with tf.device(TASK0):
        arrived = [tf.identity(each) for each in several]
        with tf.control_dependencies(arrived):
            return value, [tf.reduce_max(each) for each in arrived]


def _until_idle(cluster: Cluster, index: int, idle: dict[str, int]) -> None:
    """Waits until the task holds no more than that."""

    def excess() -> str:
        log = cluster.log(index)[-4000:]
        return f"task {index} holds {_holdings(cluster, index)}, not {idle}; {cluster.stats(index)}\n{log}"

    until(
        excess,
        lambda: all(held <= idle[each] for each, held in _holdings(cluster, index).items()),
    )


@pytest.mark.parametrize(("what", "where", "plan"), FAULTS.values(), ids=FAULTS)
def test_failed_step_leaves_nothing_behind(
    tmp_path: Path, what: str, where: int, plan: str
) -> None:
    settings = {
        "RDMATENSOR_FAULTS": "unmapped=1" if "unmapped" in what else WRAPPED,
        "RDMATENSOR_TEST_FAILBACK_MS": "0",
        "RDMATENSOR_PLAN": plan,
    }
    cluster = Cluster.pair(tmp_path, settings)
    try:
        before = [_maps(cluster, index) for index in (0, 1)]

        def small() -> Any:
            with tf.device(TASK1):
                return cross(tf.fill([MIB // 4], 1.0))

        with session(cluster, small) as opened:
            opened.run(opened.built)
        idle = [_holdings(cluster, index) for index in (0, 1)]
        with session(cluster, _large) as opened:
            value, results = opened.built
            cluster.tasks[where].ask(f"faults {what}")
            with pytest.raises(ENDED):
                for _ in range(50):
                    opened.run(results, {value: 1.0})
            counts = cluster.tasks[where].ask(f"faults {settings['RDMATENSOR_FAULTS']}")
            assert any(counts[each.split("=")[0]] for each in what.split(",")[-1:]), counts
            assert opened.run(results, {value: 7.0}) == [7.0 + i for i in range(len(results))]
        for index in (0, 1):
            _until_idle(cluster, index, idle[index])
        cluster.tasks[1].kill()
        until("memory of the dead peer stays mapped", lambda: _maps(cluster, 0) <= before[0])
    finally:
        cluster.close()
