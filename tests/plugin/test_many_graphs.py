# SPDX-License-Identifier: Apache-2.0
"""Programs that run ever new graphs, as functions do that are traced for ever new shapes, and sessions that
nobody closes: what tasks hold for them does not grow, and where nothing more can be had, steps go on."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf

from plugin.planned import place_bytes, some_number, warm_up
from support.clusters import Cluster
from support.graphs import TASK0, TASK1, Session, session
from support.waits import until

SIZE = 1000
GRAPHS = 120
# A plan rests when 32 others have run since it ran once. Withdrawing takes a moment.
HELD = 40


def _graphs() -> list[Any]:
    """Fetches of which each makes a graph of its own: a number, and what came of it there and back."""
    fetches = []
    for number in range(GRAPHS):
        with tf.device(TASK1):
            value = some_number()
            there = tf.fill([SIZE], value)
        with tf.device(TASK0):
            back = there * (number + 1)
        with tf.device(TASK1):
            fetches.append((value, tf.reduce_max(back), tf.reduce_min(back)))
    return fetches


def _run(steps: Session, number: int) -> None:
    value, largest, smallest = steps.run(steps.built[number])
    assert largest == smallest == value * (number + 1)


def _shared(cluster: Cluster) -> tuple[list[int], list[int]]:
    """Open files and mappings of shared memory, by task."""
    files, maps = [], []
    for task in cluster.tasks:
        process = Path(f"/proc/{task.ask('pid')}")
        links = [str(link.readlink()) for link in (process / "fd").iterdir()]
        mapped = (process / "maps").read_text().splitlines()
        files.append(sum("memfd:rdmatensor" in each for each in links))
        maps.append(sum("memfd:rdmatensor" in each for each in mapped))
    return files, maps


@pytest.fixture(params=["shm", "tcp"])
def pair(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Cluster]:
    """Two tasks that nothing else has used, with one transport."""
    cluster = Cluster.pair(tmp_path, {"RDMATENSOR_TRANSPORTS": request.param})
    yield cluster
    cluster.close()


def test_graphs_that_run_once_hold_nothing(pair: Cluster) -> None:
    with session(pair, _graphs) as steps:
        _run(steps, 0)
        each = max(place_bytes(pair))
        assert each > 0
        files, held = [], []
        for number in range(1, GRAPHS):
            _run(steps, number)
            if number % (GRAPHS // 2) == GRAPHS // 2 - 1:
                until(
                    lambda: f"places of graphs that ran once stay: {place_bytes(pair)} bytes",
                    lambda: max(place_bytes(pair)) <= HELD * each,
                )
                now_files, now_held = _shared(pair)
                files.append(now_files)
                held.append(now_held)
        # The regions for one peer share a file.
        assert files[1] == files[0], files
        # Twice as many mappings as plans that do not rest, and the blocks that they share.
        assert all(now <= was + HELD // 2 for now, was in zip(held[1], held[0], strict=True)), held
        # What is run again gets its places again.
        warm_up(pair, lambda: _run(steps, 0))
        assert not any("plan" in line for task in (0, 1) for line in pair.warnings(task))


def test_no_more_files(pair: Cluster) -> None:
    """Steps of new graphs go on, by other ways, and the log says why once. The master of the session may
    open files, without which steps over gRPC end there as well."""
    with session(pair, _graphs) as steps:
        _run(steps, 0)
        pids = [task.ask("pid") for task in pair.tasks]
        soft, hard = resource.prlimit(pids[1], resource.RLIMIT_NOFILE)
        used = {int(link.name) for link in Path(f"/proc/{pids[1]}/fd").iterdir()}
        lowest = min(set(range(len(used) + 1)) - used)
        resource.prlimit(pids[1], resource.RLIMIT_NOFILE, (lowest, hard))
        for number in range(1, GRAPHS // 2):
            _run(steps, number)
        resource.prlimit(pids[1], resource.RLIMIT_NOFILE, (soft, hard))
        _run(steps, GRAPHS - 1)
        assert [task.ask("pid") for task in pair.tasks] == pids
        for task in (0, 1):
            said = [line for line in pair.warnings(task) if "files" in line]
            # One of places that it offers, one of places offered to it, one of what it cannot give back.
            assert len(said) <= 3, said
