# SPDX-License-Identifier: Apache-2.0
"""Bare sockets, with which steps of TensorFlow over tcp are compared, move as many bytes as a step."""

from __future__ import annotations

from team import Team
from tf_cases import MIB, Case
from tf_measure import BARE, Cluster, compare


def test_bare_sockets_move_the_bytes_of_each_step() -> None:
    with Team() as team:
        cluster = Cluster(team, BARE, program="tf_bare_task")
        cluster.wait()
        for count in (3, 1):
            row = compare([cluster], Case("step", count, MIB, steps=4, block=2))
            assert len(row.results[0].samples.all) == 4
            assert list(row.faults()) == []
