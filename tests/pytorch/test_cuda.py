# SPDX-License-Identifier: Apache-2.0
"""Process groups with tensors in CUDA memory.

Without a GPU, the tensors are those of support/cuda_torch.py over a stand-in for the driver. There torch
cannot make futures for devices, so these are tested on a GPU only.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from pytorch.ranks import INIT, Ranks
from support import cuda_tensors

Make = Callable[..., Ranks]

STAND_IN = """
from support import cuda_tensors
cuda_tensors.load(driver)
cuda_tensors.delay(2000)
torch.cuda.get_device_capability = lambda device=None: (0, 0)  # broadcast asks for it
from support.cuda_torch import CudaTensor as on_gpu
host = on_gpu.host
"""
REAL = """
def on_gpu(values):
    made = torch.empty_like(values, device="cuda")
    torch.cuda._sleep(20_000_000)  # what is not waited for shows
    return made.copy_(values.pin_memory(), non_blocking=True)
host = torch.Tensor.cpu
"""


@pytest.fixture(params=["stand-in", "GPU"])
def gpus(request: pytest.FixtureRequest, ranks: Make, cuda_driver: str) -> Ranks:
    """Two ranks, in which on_gpu() copies a tensor to a device, and host() back."""
    import torch

    if request.param == "GPU" and not torch.cuda.is_available():
        pytest.skip(f"torch {torch.__version__} finds no GPU here")
    if request.param == "stand-in" and cuda_tensors.ON_GPU:
        pytest.skip("torch's own tensors are tested")
    setup = STAND_IN if request.param == "stand-in" else REAL
    pair = ranks(2, joins=False)
    pair.run(setup + INIT, driver=cuda_driver)
    return pair


def test_operations(gpus: Ranks) -> None:
    """Results are on the device when an operation has ended, and read what was queued before."""
    gpus.run(
        """
        for name in ("float32", "bfloat16", "float8_e5m2", "complex64", "int64", "bool"):
            dtype = getattr(torch, name)
            base = torch.arange(6).remainder(2).to(torch.float32).to(dtype)
            mine, zeros = base if rank == 0 else torch.ones(6).to(dtype), torch.zeros(6).to(dtype)
            want = [base, torch.ones(6).to(dtype)]
            total = (base.to(torch.complex64) + 1).to(dtype)
            same = lambda tensor, wanted: checks.same(host(tensor), wanted)

            x = on_gpu(mine)
            dist.all_reduce(x)
            same(x, total)
            x = on_gpu(mine)
            dist.broadcast(x, src=1)
            same(x, want[1])
            x = on_gpu(mine)
            dist.reduce(x, dst=1)
            same(x, total if rank == 1 else mine)
            outs = [on_gpu(zeros), on_gpu(zeros)]
            dist.all_gather(outs, on_gpu(mine))
            for out, wanted in zip(outs, want):
                same(out, wanted)
            out = on_gpu(torch.cat([zeros, zeros]))
            dist.all_gather_into_tensor(out, on_gpu(mine))
            same(out, torch.cat(want))
            outs = [on_gpu(zeros), on_gpu(zeros)]
            dist.gather(on_gpu(mine), outs if rank == 0 else None, dst=0)
            if rank == 0:
                for out, wanted in zip(outs, want):
                    same(out, wanted)
            out = on_gpu(zeros)
            dist.scatter(out, [on_gpu(each) for each in want] if rank == 0 else None, src=0)
            same(out, want[rank])
            out = on_gpu(zeros[:3])
            dist.reduce_scatter_tensor(out, on_gpu(mine))
            same(out, total[3 * rank:][:3])
            out = on_gpu(zeros)
            dist.reduce_scatter(out, [on_gpu(mine), on_gpu(mine)])
            same(out, total)
            out = on_gpu(zeros)
            dist.all_to_all_single(out, on_gpu(mine))
            same(out, torch.cat([each[3 * rank:][:3] for each in want]))
            outs = [on_gpu(zeros), on_gpu(zeros)]
            dist.all_to_all(outs, [on_gpu(mine), on_gpu(zeros)])
            same(outs[0], base if rank == 0 else zeros)
            same(outs[1], want[1] if rank == 0 else zeros)
            x = on_gpu(mine)
            if rank == 0:
                dist.send(x, 1)
            else:
                dist.recv(x, 0)
                same(x, want[0])
        dist.barrier()
        """
    )


def test_works(gpus: Ranks) -> None:
    gpus.run(
        """
        x, out = on_gpu(torch.arange(100_000.0) + rank), on_gpu(torch.zeros(100_000))
        works = [dist.all_reduce(x, async_op=True)]
        if rank == 0:
            works.append(dist.isend(out, 1, tag=3))
        else:
            works.append(dist.irecv(on_gpu(torch.ones(100_000)), 0, tag=3))
        for work in reversed(works):
            work.wait()
            assert work.is_success()
        checks.same(host(x), 2 * torch.arange(100_000.0) + 1)
        coalesced = [on_gpu(torch.ones(3)), on_gpu(torch.ones(4))]
        dist.all_reduce_coalesced(coalesced)
        assert all(host(each).tolist() == [2.0] * each.numel() for each in coalesced)
        """
    )


@pytest.mark.skipif(cuda_tensors.ON_GPU, reason="it needs errors of the stand-in for CUDA's driver")
def test_a_driver_that_fails(ranks: Make, cuda_driver: str) -> None:
    """A copy that fails is no success, also if the operation has succeeded."""
    pair = ranks(2, joins=False)
    pair.run(STAND_IN + INIT, driver=cuda_driver)
    pair.run(
        """
        x = on_gpu(torch.ones(1000))
        work = dist.all_reduce(x, async_op=True)
        cuda_tensors.fail("cuMemcpyAsync", 700)
        checks.fails(work.wait, "cuMemcpyAsync")
        assert not work.is_success()
        """
    )


def test_futures(ranks: Make) -> None:
    import torch

    if not torch.cuda.is_available():
        pytest.skip(f"torch {torch.__version__} finds no GPU here, and has no futures for devices")
    pair = ranks(2, joins=False)
    pair.run(REAL + INIT)
    pair.run(
        """
        with torch.cuda.stream(torch.cuda.Stream()):
            work = dist.all_reduce(on_gpu(torch.ones(100_000)), async_op=True)
            doubled = work.get_future().then(lambda done: 2 * done.value()[0]).wait()
        assert host(doubled).eq(4).all()
        model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(64, 64).cuda())
        model(torch.full((8, 64), rank + 1.0, device="cuda")).sum().backward()
        assert model.module.weight.grad.eq(8 * 1.5).all()
        """
    )
