# SPDX-License-Identifier: Apache-2.0
"""One process group with a backend for each type of device, and how torch finds ours."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable

import pytest

from pytorch.ranks import INIT, Ranks

Make = Callable[..., Ranks]

# torch's fake backend takes tensors without memory, so the test needs no GPU.
FAKE = "import torch.testing._internal.distributed.fake_pg"


@pytest.mark.parametrize("backend", ["cpu:rdmatensor,meta:fake", "meta:fake,cpu:rdmatensor"])
def test_backends_by_device(ranks: Make, backend: str) -> None:
    pair = ranks(2, joins=False)
    pair.run(FAKE + INIT, backend=backend)
    pair.run(
        """
        world, meta = dist.group.WORLD, torch.device("meta")
        assert [each.type for each in world._device_types] == ["cpu", "meta"]
        for group in (world, dist.new_group([0, 1])):
            x, far = torch.ones(3), torch.ones(3, device=meta)
            work = dist.all_reduce(x, group=group, async_op=True)
            work.wait()
            assert work.is_completed() and x.tolist() == [2.0] * 3
            for call in (
                lambda: dist.all_reduce(far, group=group, async_op=True),
                lambda: dist.broadcast(far, 0, group=group, async_op=True),
                lambda: dist.all_gather([far, far], far, group=group, async_op=True),
                lambda: dist.gather(far, [far, far] if rank == 0 else None, group=group, async_op=True),
                lambda: dist.all_to_all_single(torch.ones(2, device=meta), torch.ones(2, device=meta),
                                               group=group, async_op=True),
                lambda: dist.isend(far, 1 - rank, group=group),
            ):
                assert type(call()).__name__ == "FakeWork"
            dist.barrier(group=group)
            assert type(group._get_backend(meta)).__name__ == "FakeProcessGroup"
            names = [None] * 2
            dist.all_gather_object(names, rank, group=group)
            assert names == [0, 1]
        dist.destroy_process_group()
        """
    )


def test_device_without_a_backend(ranks: Make) -> None:
    ranks(1).run(
        """
        meta = torch.ones(3, device="meta")
        for call in (lambda: dist.all_reduce(meta), lambda: dist.broadcast(meta, 0),
                     lambda: dist.group.WORLD._get_backend(torch.device("meta"))):
            checks.fails(call, "moves CPU and CUDA tensors", "meta", "cpu:rdmatensor,xpu:xccl")
        """
    )


def test_found_by_its_entry_point() -> None:
    """A program that imports nothing of ours: from torch 2.14 on, the name suffices."""
    torch = pytest.importorskip("torch", reason="torch is not installed: pip install --group test")
    if tuple(map(int, torch.__version__.split(".")[:2])) < (2, 14):
        pytest.skip("torch before 2.14 looks for no entry points")
    program = """
import torch, torch.distributed as dist
dist.init_process_group("rdmatensor", store=dist.HashStore(), rank=0, world_size=1)
x = torch.ones(3)
dist.all_reduce(x)
print(dist.get_backend(), x.tolist())
"""
    command = [sys.executable, "-W", "ignore", "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.splitlines()[-1] == "rdmatensor [1.0, 1.0, 1.0]"
