# SPDX-License-Identifier: Apache-2.0
"""What the processes of these tests run: operations on rdmatensor, whose results gloo's are compared with."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import timedelta
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch.distributed import ReduceOp

from support import waits


class Reconfigure(NamedTuple):
    """What torch 2.14's ReconfigureOptions has, for any torch."""

    uuid: int
    handles: list[str] | set[str]
    timeout: timedelta | None = None


def values(rank: int, dtype: str, strided: bool) -> torch.Tensor:
    """Return the tensor of a rank, of shape (3, 6)."""
    numbers = torch.Generator().manual_seed(rank + 1)
    kind: torch.dtype = getattr(torch, dtype)
    if strided:
        return (torch.rand(6, 5, generator=numbers) * 6).to(kind).t()[1:4]
    return (torch.rand(3, 6, generator=numbers) * 6).to(kind)


def same(left: torch.Tensor, right: torch.Tensor) -> None:
    """Compare bits."""
    assert left.dtype == right.dtype and left.shape == right.shape, (left, right)
    bits = [each.detach().contiguous().view(torch.uint8) for each in (left, right)]
    assert torch.equal(*bits), (left, right)


def done(work: Any) -> None:
    if work is not None:
        work.wait()


def moves(dtype: str, strided: bool, async_op: bool) -> None:
    """Check the operations that move tensors: each value is known."""
    rank, size = dist.get_rank(), dist.get_world_size()
    given = [values(each, dtype, strided) for each in range(size)]
    mine, how = given[rank], {"async_op": async_op}

    def blank() -> torch.Tensor:
        return torch.empty_strided(mine.shape, mine.stride(), dtype=mine.dtype)

    got = blank()
    got.view(torch.uint8 if got.element_size() == 1 else got.dtype).copy_(
        mine.view(torch.uint8) if mine.element_size() == 1 else mine
    )
    done(dist.broadcast(got, 1, **how))
    same(got, given[1])

    every = [blank() for _ in range(size)]
    done(dist.all_gather(every, mine, **how))
    for got, wanted in zip(every, given, strict=True):
        same(got, wanted)

    joined = torch.empty((size * len(mine), 6), dtype=mine.dtype)
    done(dist.all_gather_single(joined, mine, **how))
    same(joined, torch.cat(given))

    for root in range(size):
        every = [blank() for _ in range(size)]
        done(dist.gather(mine, every if rank == root else None, root, **how))
        for got, wanted in zip(every if rank == root else [], given, strict=rank == root):
            same(got, wanted)
        got = blank()
        done(dist.scatter(got, given if rank == root else None, root, **how))
        same(got, mine)

    swapped = torch.empty_like(joined)
    done(dist.all_to_all_single(swapped, torch.cat([mine] * size), **how))
    same(swapped, torch.cat(given))
    every = [blank() for _ in range(size)]
    done(dist.all_to_all(every, [mine] * size, **how))
    for got, wanted in zip(every, given, strict=True):
        same(got, wanted)


def reductions(dtype: str, strided: bool, async_op: bool, gloo: Any) -> None:
    """Check the operations that combine tensors: gloo gives the same bits."""
    rank, size = dist.get_rank(), dist.get_world_size()
    mine, how = values(rank, dtype, strided), {"async_op": async_op}
    bitwise = [ReduceOp.BAND, ReduceOp.BOR, ReduceOp.BXOR]
    floats = mine.dtype.is_floating_point
    # The sum of three depends on the order: of two, and of whole numbers, it does not.
    exact = mine.round() if floats else mine
    for op in [ReduceOp.SUM, ReduceOp.MIN, ReduceOp.MAX, *([] if floats else bitwise)]:
        got, wanted = exact.clone(), exact.clone()
        done(dist.all_reduce(got, op, **how))
        dist.all_reduce(wanted, op, gloo)
        same(got, wanted)
        for root in range(size):
            got = exact.clone()
            done(dist.reduce(got, root, op, **how))
            same(got, wanted if rank == root else exact)
    parts = torch.cat([exact + each for each in range(size)])
    got, wanted = torch.empty_like(exact), torch.empty_like(exact)
    done(dist.reduce_scatter_single(got, parts, **how))
    dist.reduce_scatter_single(wanted, parts, group=gloo)
    same(got, wanted)
    got = torch.empty_like(exact)
    done(dist.reduce_scatter(got, list(parts.chunk(size)), **how))
    same(got, wanted)


def fails(call: Callable[[], object], *texts: str) -> str:
    """Check that a call ends with RuntimeError, whose text has these parts. Return it."""
    try:
        call()
    except RuntimeError as error:
        for text in texts:
            assert re.search(text, str(error)), f"{text!r} is not in: {error}"
        return str(error)
    raise AssertionError("it did not fail")


def until(holds: Callable[[], object]) -> None:
    """Wait for what another thread does, for a minute at most."""
    waits.until("it does not happen", holds)


def profiled() -> Any:
    """Return the profiler's events of some operations."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        dist.all_reduce(torch.ones(3))
        dist.all_reduce(torch.ones(3), async_op=True).wait()
        dist.barrier()
    return profile.events()


def losses(name: str, group: Any, steps: int = 8, hook: Any = None) -> list[float]:
    """Train a small network in the way `name`, and return the losses."""
    from torch import nn
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.fsdp import fully_shard

    rank = dist.get_rank()
    torch.manual_seed(0)
    model: nn.Module = nn.Sequential(
        nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 4)
    )
    if name == "ddp":
        model = nn.parallel.DistributedDataParallel(model, process_group=group, bucket_cap_mb=0.01)
        if hook is not None:
            model.register_comm_hook(None, hook)
    else:
        mesh = DeviceMesh.from_group(group, "cpu")
        for layer in list(model):
            if isinstance(layer, nn.Linear):
                fully_shard(layer, mesh=mesh)
        fully_shard(model, mesh=mesh)
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    numbers = torch.Generator().manual_seed(100 + rank)
    seen = []
    for _ in range(steps):
        x = torch.randn(8, 16, generator=numbers)
        y = torch.randint(0, 4, (8,), generator=numbers)
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        seen.append(loss.item())
    return seen
