# SPDX-License-Identifier: Apache-2.0
"""rdmatensor.horovod.torch: operations, optimizers, and what goes wrong."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from on_horovod import torch_elastic
from on_horovod.programs import HERE, launched
from support import ROOT
from support.peers import LocalNursery, Peer
from support.ports import free_ports

pytest.importorskip("torch.distributed", reason="torch is not installed: pip install --group test")
pytestmark = pytest.mark.timeout(300)

RUN = """
import contextlib, io, os, runpy, sys, torch
torch.set_num_threads(1)
os.environ.update(RANK=str(rank), WORLD_SIZE=str(size))
os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
sys.argv = [program, *arguments]
said = io.StringIO()
with contextlib.redirect_stdout(said), contextlib.suppress(SystemExit):
    runpy.run_path(program, run_name="__main__")
"""


@pytest.fixture(scope="module")
def nursery() -> Iterator[LocalNursery]:
    """Forks of a process that has imported torch already."""
    nursery = LocalNursery(
        modules=["numpy", "torch._dynamo", "torch.utils.data", "rdmatensor.horovod.torch"]
    )
    yield nursery
    nursery.close()


def started(nursery: LocalNursery, size: int, program: str, *arguments: str) -> list[Peer]:
    """Processes that run a program, of this folder by default, with the variables that a launcher sets."""
    (port,) = free_ports(1)
    peers = [nursery.spawn({}, "") for _ in range(size)]
    for rank, peer in enumerate(peers):
        named = {"rank": rank, "size": size, "port": port, "arguments": list(arguments)}
        peer.start(RUN, program=str(HERE / program), **named)
    return peers


def said(nursery: LocalNursery, size: int, program: str, *arguments: str) -> list[str]:
    """What each process has printed."""
    peers = started(nursery, size, program, *arguments)
    for each in peers:
        each.finish()
    found = [each.get("said.getvalue()") for each in peers]
    for each in peers:
        each.close()
    return found


def trained(nursery: LocalNursery, size: int, folder: Path) -> list[Any]:
    said(nursery, size, "torch_loop.py", str(folder))
    return [np.load(folder / f"{size}_{rank}.npz")["values"] for rank in range(size)]


def test_operations(nursery: LocalNursery, tmp_path: Path) -> None:
    assert said(nursery, 2, "torch_operations.py", str(tmp_path)) == ["OK\n"] * 2


def test_optimizers(nursery: LocalNursery) -> None:
    assert said(nursery, 2, "torch_optimizers.py") == ["OK\n"] * 2


@pytest.mark.parametrize("size", [2, 3])
def test_join(nursery: LocalNursery, tmp_path: Path, size: int) -> None:
    assert said(nursery, size, "torch_join.py", str(tmp_path)) == ["OK\n"] * size


def test_loop_equals_one_process(nursery: LocalNursery, tmp_path: Path) -> None:
    (alone,) = trained(nursery, 1, tmp_path)
    first, second = trained(nursery, 2, tmp_path)
    np.testing.assert_array_equal(first, second)
    # Means of two means of 8 rows round otherwise than one of 16.
    np.testing.assert_allclose(first, alone, atol=1e-5)


def test_killed_peer_is_an_internal_error(nursery: LocalNursery, tmp_path: Path) -> None:
    survivor, killed = started(nursery, 2, "torch_loop.py", str(tmp_path), "die")
    survivor.finish()
    found = survivor.get("said.getvalue()")
    killed.kill()
    survivor.close()
    assert "lost:" in found and "member 1" in found


def test_killed_peer_ends_join(nursery: LocalNursery, tmp_path: Path) -> None:
    *survivors, killed = started(nursery, 3, "torch_join.py", str(tmp_path), "die")
    for each in survivors:
        each.finish()
        assert "lost:" in (found := each.get("said.getvalue()")) and "member 2" in found
        each.close()
    killed.kill()


def test_elastic_training_outlives_processes(tmp_path: Path) -> None:
    """One process is lost, then rank 0 and another one at the same time: as if nothing had happened."""
    program, deaths = HERE / "torch_elastic.py", ["1:3", "0:7", "2:7"]
    done = launched(3, program, str(tmp_path), *deaths, options=["--restarts", "3"])
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("is started anew") == 3
    found = [np.load(tmp_path / f"{rank}.npz") for rank in range(3)]
    inputs, labels = torch_elastic.rows()
    model = torch_elastic.model()
    optimizer = torch_elastic.optimizer_of(model)
    for step in range(torch_elastic.STEPS):
        torch_elastic.loss_of(model, inputs, labels, torch_elastic.rows_of(step, 0, 1)).backward()
        optimizer.step()
        optimizer.zero_grad()
    for name, alone in model.named_parameters():
        for each in found:
            np.testing.assert_array_equal(each[name], found[0][name])
        np.testing.assert_allclose(found[0][name], alone.detach().numpy(), atol=1e-6)


def test_without_restarts_the_lost_process_ends_the_program(tmp_path: Path) -> None:
    program = HERE / "torch_elastic.py"
    done = launched(2, program, str(tmp_path), "1:3", options=["--grace", "1"])
    assert done.returncode == 128 + 9, done.stderr


def test_example(nursery: LocalNursery) -> None:
    found = said(nursery, 2, str(ROOT / "examples" / "horovod_torch.py"))
    assert found == ["2 processes, accuracy 1.000\n", ""]
