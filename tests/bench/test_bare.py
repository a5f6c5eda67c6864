# SPDX-License-Identifier: Apache-2.0
"""Bare sockets, with which steps of TensorFlow over tcp are compared, move as many bytes as a step."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

from team import Team
from tf_cases import MIB, Case
from tf_measure import BARE, Cluster, measure
from tf_report import Row


def test_bare_sockets_move_the_bytes_of_each_step(tmp_path: Path) -> None:
    with Team(tmp_path) as team:
        cluster = Cluster(team, BARE, program="tf_bare_task")
        cluster.wait()
        for count in (3, 1):
            case = Case("step", count, MIB, steps=4, block=2)
            (result,) = measure([cluster], {"command": "transfer", **asdict(case)}, 4, 2)
            assert len(result.samples.all) == 4
            assert Row.of(case.name, case.step_bytes, None, [result]).faults() == []
