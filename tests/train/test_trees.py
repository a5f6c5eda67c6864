# SPDX-License-Identifier: Apache-2.0
"""Groups of rdmatensor.train along the links that init(topology=...) was told of."""

from __future__ import annotations

from pathlib import Path

import pytest

from train.ranks import run
from train.tree_cases import SIZE

pytestmark = pytest.mark.timeout(600)


def test_groups_take_trees_along_the_links_of_their_members(tmp_path: Path) -> None:
    """Members 0, 2 and 3 reach each other only through member 1, until a link between 0 and 2 is found."""
    for rank, (before, after, of_weights) in enumerate(run("trees", SIZE, tmp_path)):
        expected = {"all": 1, "(0, 1, 2)": 1, "(0, 2, 3)": 0}
        if rank == 1:
            del expected["(0, 2, 3)"]
        if rank == 3:
            del expected["(0, 1, 2)"]
        assert before == expected
        assert after == dict.fromkeys(expected, 1)
        assert of_weights > 0


def test_links_are_measured(tmp_path: Path) -> None:
    answers = run("trees_probed", 2, tmp_path)
    topology, given = answers[0]
    assert len(topology["members"]) == 2 and len(topology["links"]) >= 1
    assert len(given) == 1 and given[0] >= 4, "a tree for each kind"
    assert answers[1] == answers[0]
