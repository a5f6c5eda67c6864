# SPDX-License-Identifier: Apache-2.0
"""Tensors in registered memory, which move without a copy, and DDP's buckets in it."""

# Annotations stay objects here: DistributedDataParallel compares those of its hooks.
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch.futures import Future

from .session import current_device

__all__ = ["bucket_hook", "empty"]


def empty(shape: int | Sequence[int], dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Return a zero-filled tensor in registered memory: operations of process groups move it without a copy.

    Create it once and use it often, because registering costs more than a copy of a small tensor. It is
    registered until the process groups of this time are destroyed; afterwards it is a tensor as any other.
    Raises RuntimeError before init_process_group, and DeviceError if no memory is left.
    """
    dims = (shape,) if isinstance(shape, int) else tuple(shape)
    nbytes = math.prod(dims) * dtype.itemsize
    if not nbytes:
        return torch.zeros(dims, dtype=dtype)
    return torch.from_numpy(current_device()._registered(nbytes)).view(dtype).view(dims)


def bucket_hook(
    process_group: dist.ProcessGroup | None = None,
) -> Callable[[Any, dist.GradBucket], Future]:
    """Return a communication hook for DistributedDataParallel that averages gradients in registered memory.

    Give it to `model.register_comm_hook(None, hook)`. The hook divides each bucket by the number of members
    while it copies it, as DDP does in place, and members read the sum of others where it lies. The averages
    have the same bits as without the hook. It keeps memory for each bucket. Buckets of CUDA
    devices are averaged as DDP does it.
    """
    buffers: dict[int, torch.Tensor] = {}

    def average_bucket(_state: Any, bucket: dist.GradBucket) -> Future[torch.Tensor]:
        group = process_group or dist.group.WORLD
        gradients = bucket.buffer()
        if not gradients.is_cpu:
            shared = dist.all_reduce(gradients.div_(group.size()), group=group, async_op=True)
            return shared.get_future().then(lambda done: done.value()[0])
        buffer = buffers.get(bucket.index())
        if buffer is None or buffer.shape != gradients.shape or buffer.dtype != gradients.dtype:
            buffer = buffers[bucket.index()] = empty(gradients.shape, gradients.dtype)
        torch.div(gradients, group.size(), out=buffer)
        work = dist.all_reduce(buffer, group=group, async_op=True)
        return work.get_future().then(lambda done: done.value()[0])

    return average_bucket
