# SPDX-License-Identifier: Apache-2.0
"""The example of a support vector machine finds libsvm's objective, with and without elimination."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rdmatensor
from rdmatensor.train.run.roles import Role

MEMBERS = 3


@pytest.fixture
def svm(root: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.syspath_prepend(str(root / "examples"))
    import svm

    yield svm
    del sys.modules["svm"]


@pytest.mark.parametrize(
    ("name", "count"), [("moons", 800), ("classes", 500), ("wide", 400), ("cancer", None)]
)
def test_objective_is_libsvms(svm: Any, name: str, count: int | None) -> None:
    case = svm.case(name, count)
    right, _ = svm.reference(case)
    found = [svm.fit(None, None, *case, eliminate) for eliminate in svm.ELIMINATE]
    for fit in found:
        assert fit.objective == pytest.approx(right, rel=1e-3)
    reconstructions = dict(zip(svm.ELIMINATE, (fit.reconstructions for fit in found), strict=True))
    assert reconstructions["none"] == 0 and reconstructions["early"] > 0


def test_members_find_what_one_finds(svm: Any) -> None:
    """Devices of this process, each with a thread."""
    case = svm.case("moons", 301)
    alone = svm.fit(None, None, *case)
    devices = [rdmatensor.Device(f"rank {rank}") for rank in range(MEMBERS)]
    address = devices[0].address

    def member(rank: int) -> Any:
        role = Role(rank, MEMBERS, address, 0, "the test")
        with svm.join(devices[rank], role, "svm", 60.0) as group:
            return svm.fit(devices[rank], group, *case)

    try:
        with ThreadPoolExecutor(MEMBERS) as pool:
            found = list(pool.map(member, range(MEMBERS)))
    finally:
        for device in devices:
            device.close()
    assert len({fit.objective for fit in found}) == 1
    assert found[0].objective == pytest.approx(alone.objective, rel=1e-3)
    assert found[0].reconstructions > 0
    together = np.concatenate([fit.multipliers for fit in found])
    assert together == pytest.approx(alone.multipliers, abs=1e-1)
