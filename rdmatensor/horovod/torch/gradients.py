# SPDX-License-Identifier: Apache-2.0
"""Run Horovod's operations with the gradients that Horovod gives them."""

from __future__ import annotations

from typing import Any

import torch

from ...errors import UsageError
from ..reductions import Average, ReduceOp, Sum, chosen
from . import operations
from .compression import Compression
from .operations import Tensors
from .process import ProcessSet, global_process_set, members_of, rank


def _of(name: str | None) -> str:
    return f"gradient of {name or 'an operation without a name'}"


class _Allreduce(torch.autograd.Function):  # type: ignore[misc]
    @staticmethod
    def forward(
        ctx: Any,
        op: ReduceOp,
        name: str | None,
        factors: tuple[float, float],
        process_set: ProcessSet,
        alone: bool,
        *tensors: torch.Tensor,
    ) -> tuple[torch.Tensor, ...]:
        ctx.settings = op, name, factors, process_set, alone
        text = operations.named("allreduce" if alone else "grouped_allreduce", name)
        return tuple(operations.reduced(tensors, None, op, text, *factors, process_set).wait())

    @staticmethod
    def backward(ctx: Any, *upstream: torch.Tensor) -> tuple[Any, ...]:
        op, name, *rest = ctx.settings
        if op not in (Average, Sum):
            raise UsageError(
                f"{name or 'allreduce'}: {op.name} has no gradient: use Sum or Average"
            )
        return (None,) * 5 + tuple(_Allreduce.apply(op, _of(name), *rest, *upstream))


def allreduce(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    compression: Any = Compression.none,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> torch.Tensor:
    """Combine the tensors of all processes, element by element: by default, to their mean.

    The result is a new tensor. Means of integers lose what follows the point. The gradient is reduced as the
    tensor was; of Min, Max and Product there is none. Raises UsageError for truth values, and Unsupported for
    Adasum.
    """
    sent, kept = compression.compress(tensor)
    factors = prescale_factor, postscale_factor
    (found,) = _Allreduce.apply(chosen(average, op), name, factors, process_set, True, sent)
    result: torch.Tensor = compression.decompress(found, kept)
    return result


def grouped_allreduce(
    tensors: Tensors,
    average: bool | None = None,
    name: str | None = None,
    compression: Any = Compression.none,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> list[torch.Tensor]:
    """Do what allreduce does, for several tensors, in one operation for each type."""
    pairs = [compression.compress(each) for each in tensors]
    factors = prescale_factor, postscale_factor
    sent = [each for each, _ in pairs]
    found = _Allreduce.apply(chosen(average, op), name, factors, process_set, False, *sent)
    return [
        compression.decompress(each, kept) for each, (_, kept) in zip(found, pairs, strict=True)
    ]


class _Allgather(torch.autograd.Function):  # type: ignore[misc]
    @staticmethod
    def forward(
        ctx: Any, name: str | None, process_set: ProcessSet, *tensors: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        pairs = operations.gathered(
            tensors, operations.named("allgather", name), process_set
        ).wait()
        number = members_of(process_set).rank()
        ctx.settings = name, process_set, [(sum(rows[:number]), rows[number]) for _, rows in pairs]
        return tuple(each for each, _ in pairs)

    @staticmethod
    def backward(ctx: Any, *upstream: torch.Tensor) -> tuple[Any, ...]:
        name, process_set, places = ctx.settings
        means = grouped_allreduce(upstream, name=_of(name), op=Average, process_set=process_set)
        mine = [mean.narrow(0, *place) for mean, place in zip(means, places, strict=True)]
        return (None, None, *mine)


def allgather(
    tensor: torch.Tensor, name: str | None = None, process_set: ProcessSet = global_process_set
) -> torch.Tensor:
    """Join the tensors of all processes along the first dimension, in which they may differ.

    The gradient is this process's part of the mean of all gradients. Raises UsageError for a tensor without
    dimensions.
    """
    found: tuple[torch.Tensor, ...] = _Allgather.apply(name, process_set, tensor)
    return found[0]


def grouped_allgather(
    tensors: Tensors, name: str | None = None, process_set: ProcessSet = global_process_set
) -> list[torch.Tensor]:
    """Do what allgather does, for several tensors."""
    return list(_Allgather.apply(name, process_set, *tensors))


class _Broadcast(torch.autograd.Function):  # type: ignore[misc]
    @staticmethod
    def forward(
        ctx: Any, tensor: torch.Tensor, root_rank: int, name: str | None, process_set: ProcessSet
    ) -> Any:
        ctx.settings = root_rank, name, process_set
        return operations.broadcast_async(tensor, root_rank, name, process_set).wait()

    @staticmethod
    def backward(ctx: Any, *upstream: torch.Tensor) -> tuple[Any, ...]:
        root_rank, name, process_set = ctx.settings
        mean = allreduce(upstream[0], name=_of(name), op=Average, process_set=process_set)
        return (mean if rank() == root_rank else torch.zeros_like(mean)), None, None, None


def broadcast(
    tensor: torch.Tensor,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> torch.Tensor:
    """Return the tensor of `root_rank`, which is a rank among all processes. The others give one like it.

    The gradient is the mean of all gradients in `root_rank`, and zero elsewhere. Raises UsageError if
    `root_rank` is not in the set.
    """
    found: torch.Tensor = _Broadcast.apply(tensor, root_rank, name, process_set)
    return found


class _Alltoall(torch.autograd.Function):  # type: ignore[misc]
    @staticmethod
    def forward(
        ctx: Any, tensor: torch.Tensor, splits: Any, name: str | None, process_set: ProcessSet
    ) -> tuple[torch.Tensor, torch.Tensor]:
        found, received = operations.alltoall_async(tensor, splits, name, process_set).wait()
        ctx.settings = len(tensor), received, name, process_set
        ctx.mark_non_differentiable(received)
        return found, received

    @staticmethod
    def backward(ctx: Any, *upstream: torch.Tensor) -> tuple[Any, ...]:
        rows, received, name, process_set = ctx.settings
        back, _ = _Alltoall.apply(upstream[0], received, _of(name), process_set)
        # Rows beyond the splits went nowhere.
        rest = back.new_zeros(rows - len(back), *back.shape[1:])
        return torch.cat([back, rest]), None, None, None


def alltoall(
    tensor: torch.Tensor,
    splits: Any = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Send splits[i] rows to process i, and return the rows that all sent here.

    With `splits`, also return how many rows came from each process, as integers of the type of `splits`.
    Without it, the rows are cut into equal parts. The gradient travels back. Raises UsageError if `splits`
    are no integers, one for each process; and at all processes, if one has splits that do not fit its rows.
    """
    found, received = _Alltoall.apply(tensor, splits, name, process_set)
    return found if splits is None else (found, received)


class _Reducescatter(torch.autograd.Function):  # type: ignore[misc]
    @staticmethod
    def forward(
        ctx: Any,
        op: ReduceOp,
        name: str | None,
        factors: tuple[float, float],
        process_set: ProcessSet,
        *tensors: torch.Tensor,
    ) -> tuple[torch.Tensor, ...]:
        ctx.settings = op, name, factors, process_set
        handle = operations.grouped_reducescatter_async(tensors, name, op, process_set, *factors)
        return tuple(handle.wait())

    @staticmethod
    def backward(ctx: Any, *upstream: torch.Tensor) -> tuple[Any, ...]:
        op, name, (before, after), process_set = ctx.settings
        if op not in (Average, Sum):
            raise UsageError(f"{name or 'reducescatter'}: {op.name} has no gradient")
        factor = before * after * (members_of(process_set).size() if op == Sum else 1)
        scaled = [each * factor for each in upstream]
        return (None,) * 4 + tuple(_Allgather.apply(_of(name), process_set, *scaled))


def reducescatter(
    tensor: torch.Tensor,
    name: str | None = None,
    compression: Any = Compression.none,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> torch.Tensor:
    """Return this process's rows of what allreduce gives; the first processes have one more if need be.

    The gradient is that of Horovod: gradients are gathered, and multiplied by the factors and, for Sum, by
    the number of processes. Raises UsageError for a tensor without dimensions.
    """
    factors = prescale_factor, postscale_factor
    return grouped_reducescatter([tensor], name, compression, op, process_set, *factors)[0]


def grouped_reducescatter(
    tensors: Tensors,
    name: str | None = None,
    compression: Any = Compression.none,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> list[torch.Tensor]:
    """Do what reducescatter does, for several tensors."""
    pairs = [compression.compress(each) for each in tensors]
    factors = prescale_factor, postscale_factor
    sent = [each for each, _ in pairs]
    found = _Reducescatter.apply(ReduceOp(op), name, factors, process_set, *sent)
    return [
        compression.decompress(each, kept) for each, (_, kept) in zip(found, pairs, strict=True)
    ]
