# SPDX-License-Identifier: Apache-2.0
"""Processes with a process group. Without torch, these tests are skipped."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from pytorch.ranks import Ranks
from support.peers import LocalNursery

Make = Callable[..., Ranks]


@pytest.fixture(scope="session")
def nursery() -> Iterator[LocalNursery]:
    pytest.importorskip(
        "torch.distributed", reason="torch is not installed: pip install --group test"
    )
    modules = [
        "numpy",
        "torch.distributed.fsdp",
        "torch._dynamo",
        "rdmatensor.torch",
        "rdmatensor.train.sync.ssp",
    ]
    if find_spec("torchft"):
        modules += ["torchft.coordination", "rdmatensor.torch.torchft"]
    nursery = LocalNursery(modules=modules)
    yield nursery
    nursery.close()


@pytest.fixture
def ranks(nursery: LocalNursery, tmp_path: Path) -> Iterator[Make]:
    """ranks(size): processes that this test has for itself."""
    made: list[Ranks] = []

    def make(size: int, **arguments: Any) -> Ranks:
        made.append(Ranks(nursery, size, tmp_path / f"store {len(made)}", **arguments))
        return made[-1]

    yield make
    for each in made:
        each.close()


@pytest.fixture(scope="module")
def three(nursery: LocalNursery, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ranks]:
    """Processes that the tests of a module share, with a group of gloo to compare with."""
    ranks = Ranks(nursery, 3, tmp_path_factory.mktemp("torch") / "store")
    ranks.run("gloo = dist.new_group(backend='gloo')")
    yield ranks
    ranks.run("dist.destroy_process_group()")
    ranks.close()
