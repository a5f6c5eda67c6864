# SPDX-License-Identifier: Apache-2.0
"""The hot paths over verbs take no more instructions than their budgets. Those of libibverbs and of the
device's library in user space are counted, too; the kernel's are not."""

from __future__ import annotations

import shutil

import pytest

from rdmatensor.softroce import Lab
from support import instructions

pytestmark = pytest.mark.skipif(
    not (shutil.which("valgrind") and shutil.which("cc")),
    reason="no valgrind: apt install valgrind",
)


@pytest.mark.long
def test_hot_paths_keep_their_budgets_over_verbs(lab: Lab) -> None:
    run = instructions.in_guest(lab.hosts[0])
    counts = instructions.count(instructions.build(lab.shared), "verbs", run)
    budgets = instructions.read_budgets("verbs")
    assert instructions.over(counts, budgets) == []
    assert set(budgets) == set(counts)
    # A budget far above what its path takes guards nothing.
    assert all(budgets[path] < 1.5 * used for path, used in counts.items())
