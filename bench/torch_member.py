# SPDX-License-Identifier: Apache-2.0
"""One process of bench_torch.py, which runs operations of torch.distributed on either backend on request."""

# Annotations stay objects here: DistributedDataParallel compares those of its hooks.
import os
import sys
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import rdmatensor.torch
from member import serve_steps

PATIENCE = timedelta(seconds=100)


def operation(
    kind: str, group: Any, empty: Callable[[int], torch.Tensor], count: int, rank: int, size: int
) -> Callable[[], object]:
    """A call of an operation whose tensor of this process has `count` elements."""
    one = empty(count)
    one.fill_(1)
    if kind == "all_reduce":
        return lambda: dist.all_reduce(one, op=dist.ReduceOp.MAX, group=group)  # stays finite
    if kind == "broadcast":
        return lambda: dist.broadcast(one, 0, group=group)
    if kind == "all_gather":
        whole = empty(size * count)
        return lambda: dist.all_gather_into_tensor(whole, one, group=group)
    whole = empty(size * max(count // size, 1))
    part = empty(whole.numel() // size)
    if kind == "reduce_scatter":
        return lambda: dist.reduce_scatter_tensor(part, whole, group=group)
    if kind == "all_to_all":
        result = empty(whole.numel())
        return lambda: dist.all_to_all_single(result, whole, group=group)

    def there_and_back() -> None:
        """Send to the other process of the pair, and receive what it sends back."""
        peer = rank ^ 1
        if peer == size:
            return
        if rank % 2:
            dist.recv(one, peer, group=group)
            dist.send(one, peer, group=group)
        else:
            dist.send(one, peer, group=group)
            dist.recv(one, peer, group=group)

    return there_and_back


def keep(_state: None, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """Leave gradients as they are: what DDP costs by itself."""
    done: torch.futures.Future[torch.Tensor] = torch.futures.Future()
    done.set_result(bucket.buffer())
    return done


def training(group: Any, memory: str, sharded: bool) -> Callable[[], object]:
    """A step of a model with 17 MB of gradients; without a group, of this process alone.

    The parameters are sharded, by FSDP2, or all processes have them, by DDP.
    """
    torch.manual_seed(0)
    layers = [torch.nn.Linear(1024, 1024, bias=False) for _ in range(4)]
    model: torch.nn.Module = torch.nn.Sequential(*layers)
    if group is not None and sharded:
        mesh = DeviceMesh.from_group(group, "cpu")
        for each in layers:
            fully_shard(each, mesh=mesh)
        fully_shard(model, mesh=mesh)
    elif group is not None:
        model = DistributedDataParallel(model, process_group=group)
        if memory:
            hook = rdmatensor.torch.bucket_hook(group) if memory == "registered" else keep
            model.register_comm_hook(None, hook)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    data = torch.ones(16, 1024)

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        model(data).sum().backward()
        optimizer.step()

    return step


def main(meeting: str) -> None:
    torch.set_num_threads(1)
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    dist.init_process_group(
        "gloo", f"file://{meeting}", rank=rank, world_size=size, timeout=PATIENCE
    )
    ours = dist.new_group(backend="rdmatensor", timeout=PATIENCE)
    groups: dict[str, Any] = {"alone": None, "gloo": dist.group.WORLD, "rdmatensor": ours}

    def make(kind: str, backend: str, memory: str, nbytes: int, calls: int) -> Callable[[], object]:
        group = groups[backend]
        if kind in ("DDP", "FSDP2"):
            call = training(group, memory, kind == "FSDP2")
        else:
            empty = rdmatensor.torch.empty if memory == "registered" else torch.empty
            call = operation(kind, group, empty, max(nbytes // 4, 1), rank, size)

        def step() -> None:
            for _ in range(calls):
                call()

        return step

    serve_steps(make, before=lambda: dist.barrier(group=groups["gloo"]))


if __name__ == "__main__":
    main(sys.argv[1])
