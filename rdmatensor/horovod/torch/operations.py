# SPDX-License-Identifier: Apache-2.0
"""Start Horovod's operations on torch.distributed, and wait for them.

Names have to be the same in all processes, as have types, reductions, factors, and shapes up to the first
dimension where rows are gathered. If they differ, every process gets Disagreement, which quotes two of them.
If a process is lost, the others get HorovodInternalError. Any thread may call operations, if all processes
start those of one set in one order. Tensors have any strides, and are on the CPU or a CUDA device.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist

from ...errors import UsageError
from ..absent import refuse_adasum
from ..reductions import Average, ReduceOp, Sum, chosen
from .joining import BARRIER, REFUSED, Reduction, Slot
from .process import ProcessSet, global_process_set, internal_errors, joining, members_of

Tensors = Sequence[torch.Tensor]

_REDUCTIONS = {
    ReduceOp.AVERAGE: dist.ReduceOp.AVG,
    ReduceOp.SUM: dist.ReduceOp.SUM,
    ReduceOp.MIN: dist.ReduceOp.MIN,
    ReduceOp.MAX: dist.ReduceOp.MAX,
    ReduceOp.PRODUCT: dist.ReduceOp.PRODUCT,
}


class Handle:
    """Operations under way: the works of torch, and what makes their result. Not thread-safe.

    `works` is cleared once all are complete: others may have the list, too.
    """

    def __init__(self, works: list[Any], finish: Callable[[], Any]) -> None:
        self._works = works
        self._finish: Callable[[], Any] | None = finish
        self._result: Any = None

    def done(self) -> bool:
        """Return whether all are complete, successfully or not."""
        return all(each.is_completed() for each in self._works)

    def wait(self) -> Any:
        """Block until all are complete, and return their result, which is the same each time.

        Raises HorovodInternalError if one has failed.
        """
        if self._finish is not None:
            with internal_errors():
                for each in self._works:
                    each.wait()
            self._result = self._finish()
            self._finish = None
            self._works.clear()
        return self._result

    def then(self, function: Callable[[Any], Any]) -> Handle:
        """Return a handle whose result is what `function` makes of this one's."""
        return Handle(self._works, lambda: function(self.wait()))


def poll(handle: Handle) -> bool:
    """Return whether an operation is complete: synchronize() would not wait."""
    return handle.done()


def synchronize(handle: Handle) -> Any:
    """Block until an operation is complete, and return its result, or a list of them for a group.

    Raises HorovodInternalError if it has failed.
    """
    return handle.wait()


def _started(
    process_set: ProcessSet,
    text: str,
    start: Callable[[Any], list[Any]],
    finish: Callable[[], Any],
    slots: Sequence[Slot] = (),
) -> Handle:
    """Start operations of the members, which compare `text` in them. `start` returns their works.

    In `slots`, those take part that have joined; without, nobody can have. `finish` makes the result.
    """
    members = members_of(process_set)
    with internal_errors(), members.comparing(text):
        if process_set is global_process_set and slots:
            works = joining().run(text, slots, lambda: start(members))
        else:
            works = start(members)
    return Handle(works, finish)


def _described(tensor: torch.Tensor, ragged: bool = False) -> str:
    shape = list(map(str, tensor.shape))
    if ragged and shape:
        shape[0] = "any"
    device = "" if tensor.is_cpu else f" on {tensor.device.type}"
    return f"{str(tensor.dtype).removeprefix('torch.')} [{', '.join(shape)}]{device}"


def named(kind: str, name: str | None, *more: str) -> str:
    """Return the text by which processes know an operation, in errors too."""
    return "\n".join((f"{kind} {name or 'without a name'}", *more))


def scale(tensor: torch.Tensor, factor: float) -> None:
    """Multiply a tensor in place. Integers are multiplied as float64, and lose what follows the point."""
    if factor == 1.0:
        return
    if tensor.is_floating_point() or tensor.is_complex():
        tensor.mul_(factor)
    else:
        tensor.copy_(tensor.double() * factor)


def _reduction(op: ReduceOp, tensor: torch.Tensor, name: str | None) -> Any:
    """Return torch's reduction. Of integers, the mean is the sum, which _averaged divides."""
    refuse_adasum(op)
    if tensor.dtype is torch.bool:
        raise UsageError(f"{name or op.name}: truth values have no {op.name}: give uint8")
    if op == Average and not _has_mean(tensor):
        op = Sum
    return _REDUCTIONS[op]


def _has_mean(tensor: torch.Tensor) -> bool:
    return bool(tensor.is_floating_point() or tensor.is_complex())


def _averaged(tensor: torch.Tensor, op: ReduceOp, size: int, factor: float) -> None:
    """Make the mean of integers, without what follows the point, and multiply by a factor."""
    if op == Average and not _has_mean(tensor):
        if factor == 1.0:
            tensor.div_(size, rounding_mode="trunc")
            return
        factor /= size
    scale(tensor, factor)


def reduced(
    tensors: Tensors,
    outputs: Tensors | None,
    op: ReduceOp,
    text: str,
    prescale: float,
    postscale: float,
    process_set: ProcessSet,
) -> Handle:
    """Start all-reductions of tensors, in one operation for each type. The result is a list.

    `outputs` get the results, and may be the tensors themselves; None makes new ones.
    """
    given = [each.detach() for each in tensors]
    made = outputs is None
    results = [torch.empty_like(each) for each in given] if outputs is None else list(outputs)
    to = [each.detach() for each in results]
    factors = "" if prescale == postscale == 1.0 else f", factors {prescale}, {postscale}"
    text = "\n".join((text, op.name.lower() + factors, *map(_described, given)))
    kinds: dict[Any, list[int]] = {}
    for i, each in enumerate(given):
        kinds.setdefault((each.dtype, each.device), []).append(i)
    how = {kind: _reduction(op, given[places[0]], text) for kind, places in kinds.items()}
    size = members_of(process_set).size()
    buffers: list[torch.Tensor] = []

    def start(members: Any) -> list[Any]:
        works = []
        for kind, places in kinds.items():
            if len(places) == 1:
                buffer = to[places[0]]
                if made:
                    buffer.copy_(given[places[0]])
            else:
                buffer = torch.cat([given[i].reshape(-1) for i in places])
            scale(buffer, prescale)
            works.append(dist.all_reduce(buffer, how[kind], members, async_op=True))
            buffers.append(buffer)
        return works

    def finish() -> list[torch.Tensor]:
        for buffer, places in zip(buffers, kinds.values(), strict=True):
            _averaged(buffer, op, size, postscale)
            if len(places) > 1:
                pieces = buffer.split([given[i].numel() for i in places])
                for i, piece in zip(places, pieces, strict=True):
                    to[i].copy_(piece.view(to[i].shape))
        return results

    slots = [
        Reduction(dtype, device.type, sum(given[i].numel() for i in places), how[dtype, device])
        for (dtype, device), places in kinds.items()
    ]
    return _started(process_set, text, start, finish, slots)


def first(results: Sequence[Any]) -> Any:
    """Return the only result of an operation on one tensor."""
    return results[0]


def allreduce_async(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Handle:
    """Start combining the tensors of all processes, element by element: by default, to their mean.

    The result is a new tensor. Means of integers lose what follows the point. Raises UsageError for truth
    values, and Unsupported for Adasum.
    """
    how, text = chosen(average, op), named("allreduce", name)
    factors = prescale_factor, postscale_factor
    return reduced([tensor], None, how, text, *factors, process_set).then(first)


def allreduce_async_(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Handle:
    """Do what allreduce_async does, in place. The tensor is valid after synchronize()."""
    how, text = chosen(average, op), named("allreduce", name)
    factors = prescale_factor, postscale_factor
    return reduced([tensor], [tensor], how, text, *factors, process_set).then(first)


def allreduce_(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Do what allreduce does, in place, without a gradient."""
    return allreduce_async_(
        tensor, average, name, op, prescale_factor, postscale_factor, process_set
    ).wait()


def grouped_allreduce_async(
    tensors: Tensors,
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Handle:
    """Do what allreduce_async does, for several tensors, in one operation for each type."""
    how, text = chosen(average, op), named("grouped_allreduce", name)
    return reduced(tensors, None, how, text, prescale_factor, postscale_factor, process_set)


def grouped_allreduce_async_(
    tensors: Tensors,
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Handle:
    """Do what grouped_allreduce_async does, in place. The tensors are valid after synchronize()."""
    how, text = chosen(average, op), named("grouped_allreduce", name)
    return reduced(tensors, tensors, how, text, prescale_factor, postscale_factor, process_set)


def grouped_allreduce_(
    tensors: Tensors,
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Do what grouped_allreduce does, in place, without a gradient."""
    return grouped_allreduce_async_(
        tensors, average, name, op, prescale_factor, postscale_factor, process_set
    ).wait()


def sparse_allreduce_async(
    tensor: torch.Tensor,
    name: str | None,
    op: int,
    process_set: ProcessSet = global_process_set,
) -> Callable[[], torch.Tensor]:
    """Start gathering the rows of sparse tensors. Return a function that waits for their sum, or mean.

    The result has a row for each that was given; coalesce() adds rows of one index up. Raises UsageError
    if `op` is neither Sum nor Average.
    """
    how, called = ReduceOp(op), name or "sparse_allreduce"
    if how not in (Average, Sum):
        raise UsageError(
            f"{called}: rows can be summed or averaged: convert the tensor with to_dense()"
        )
    if not tensor.is_sparse:
        raise UsageError(
            f"{called}: the tensor has the layout {tensor.layout}: call allreduce_async"
        )
    indices, values = tensor.detach()._indices(), tensor.detach()._values()
    text = named("sparse_allreduce", called, f"{how.name.lower()} of {list(tensor.shape)}")
    parts = gathered([indices.t().contiguous(), values], text, process_set)
    size = members_of(process_set).size()

    def finish() -> torch.Tensor:
        (rows, _), (every, _) = parts.wait()
        if how == Average:
            every = every / size
        return torch.sparse_coo_tensor(rows.t(), every, tensor.shape, check_invariants=False)

    return finish


def _exchanged(numbers: Sequence[int], text: str, process_set: ProcessSet) -> list[list[int]]:
    """Return the numbers of all processes, by rank. It waits for them."""
    every = torch.empty(members_of(process_set).size(), len(numbers), dtype=torch.int64)
    mine = torch.tensor(list(numbers), dtype=torch.int64)

    def start(members: Any) -> list[Any]:
        return [dist.all_gather(list(every), mine, members, async_op=True)]

    found: list[list[int]] = _started(process_set, text, start, every.tolist, [REFUSED]).wait()
    return found


def gathered(tensors: Tensors, text: str, process_set: ProcessSet) -> Handle:
    """Start joining tensors along their first dimensions, in which processes may differ.

    It waits until all have told their lengths. The result is a list of pairs: what a tensor was joined to,
    and how many rows came from each process. If a tensor has no dimensions, all get UsageError.
    """
    given = [each.detach() for each in tensors]
    text = "\n".join((text, *(_described(each, ragged=True) for each in given)))
    lengths = _exchanged([len(each) if each.dim() else -1 for each in given], text, process_set)
    if any(min(each, default=0) < 0 for each in lengths):
        raise UsageError(f"{text}: a scalar cannot be joined to others: give it a dimension")
    counts = [list(each) for each in zip(*lengths, strict=True)]
    outs = [
        torch.empty(sum(rows), *each.shape[1:], dtype=each.dtype, device=each.device)
        for each, rows in zip(given, counts, strict=True)
    ]

    def start(members: Any) -> list[Any]:
        return [
            dist.all_gather(list(out.split(rows)), each.contiguous(), members, async_op=True)
            for each, out, rows in zip(given, outs, counts, strict=True)
        ]

    return _started(process_set, text, start, lambda: list(zip(outs, counts, strict=True)))


def _joined(results: Sequence[tuple[torch.Tensor, list[int]]]) -> list[torch.Tensor]:
    return [each for each, _ in results]


def allgather_async(
    tensor: torch.Tensor, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Handle:
    """Start joining the tensors of all processes along the first dimension, in which they may differ.

    It waits until all have told their lengths. Raises UsageError for a tensor without dimensions.
    """
    return grouped_allgather_async([tensor], name, process_set).then(first)


def grouped_allgather_async(
    tensors: Tensors, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Handle:
    """Do what allgather_async does, for several tensors."""
    return gathered(tensors, named("allgather", name), process_set).then(_joined)


def _copied(
    tensor: torch.Tensor,
    output: torch.Tensor,
    root_rank: int,
    name: str | None,
    process_set: ProcessSet,
) -> Handle:
    if root_rank not in process_set.ranks:
        raise UsageError(
            f"{name or 'broadcast'}: root_rank is {root_rank}: give one of {process_set.ranks}"
        )
    root = process_set.ranks.index(root_rank)
    text = named("broadcast", name, f"from rank {root_rank}", _described(tensor))
    to = output.detach()
    if output is not tensor and members_of(process_set).rank() == root:
        to.copy_(tensor.detach())

    def start(members: Any) -> list[Any]:
        # Without it, the root would be done, and know nothing, where others have given something else.
        dist.barrier(members, async_op=True).wait()
        return [dist.broadcast(to, group=members, group_src=root, async_op=True)]

    return _started(process_set, text, start, lambda: output, [REFUSED])


def broadcast_async(
    tensor: torch.Tensor,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Handle:
    """Start copying the tensor of `root_rank`, a rank among all processes. The others give one like it.

    The result is a new tensor. It waits until all have called it. Raises UsageError if `root_rank` is not in
    the set.
    """
    output = torch.empty_like(tensor, requires_grad=False)
    return _copied(tensor, output, root_rank, name, process_set)


def broadcast_async_(
    tensor: torch.Tensor,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Handle:
    """Do what broadcast_async does, in place. The tensor is valid after synchronize()."""
    return _copied(tensor, tensor, root_rank, name, process_set)


def broadcast_(
    tensor: torch.Tensor,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Do what broadcast does, in place, without a gradient."""
    return broadcast_async_(tensor, root_rank, name, process_set).wait()


def alltoall_async(
    tensor: torch.Tensor,
    splits: Any = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Handle:
    """Start sending splits[i] rows to process i.

    The result is a pair: the rows that all sent here, and how many came from each process, as integers of the
    type of `splits`. Without `splits`, the rows are cut into equal parts. It waits until all have told their
    splits. Raises UsageError if `splits` are no integers, one for each process; and at all processes, if one
    has splits that do not fit its rows.
    """
    size, called = members_of(process_set).size(), name or "alltoall"
    given = tensor.detach()
    rows = len(given) if given.dim() else -1
    if splits is None:
        part = rows // size if rows % size == 0 else -1
        wanted, kind, place = [part] * size, torch.int32, torch.device("cpu")
    else:
        numbers = torch.as_tensor(splits)
        kind, place = numbers.dtype, numbers.device
        if not isinstance(splits, torch.Tensor):
            kind = torch.int32 if kind is torch.int64 else kind
        if kind not in (torch.int32, torch.int64):
            raise UsageError(f"{called}: splits are {kind}: give integers")
        if numbers.shape != (size,):
            shape = list(numbers.shape)
            raise UsageError(f"{called}: splits have the shape {shape}: give {size} numbers")
        wanted = numbers.tolist()
    text = named("alltoall", name, _described(given, ragged=True))
    every = _exchanged([rows, *wanted], text, process_set)
    for number, (there, *theirs) in enumerate(every):
        if min(theirs) < 0 or sum(theirs) > there:
            raise UsageError(
                f"{called}: process {number} of {size} has {there} rows, and splits {theirs}: give splits "
                f"of at most its rows, or rows that {size} divides"
            )
    received = [theirs[1 + members_of(process_set).rank()] for theirs in every]
    out = given.new_empty(sum(received), *given.shape[1:])

    def start(members: Any) -> list[Any]:
        sent = given[: sum(wanted)].contiguous()
        return [dist.all_to_all_single(out, sent, received, wanted, members, async_op=True)]

    def finish() -> tuple[torch.Tensor, torch.Tensor]:
        return out, torch.tensor(received, dtype=kind, device=place)

    return _started(process_set, text, start, finish)


def reducescatter_async(
    tensor: torch.Tensor,
    name: str | None = None,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Handle:
    """Start what allreduce_async does, of which the result is this process's rows.

    The first processes have one more if need be. Raises UsageError for a tensor without dimensions.
    """
    factors = prescale_factor, postscale_factor
    return grouped_reducescatter_async([tensor], name, op, process_set, *factors).then(first)


def grouped_reducescatter_async(
    tensors: Tensors,
    name: str | None = None,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Handle:
    """Do what reducescatter_async does, for several tensors."""
    how, members = ReduceOp(op), members_of(process_set)
    size, number = members.size(), members.rank()
    factors = f"factors {prescale_factor}, {postscale_factor}"
    text = named("reducescatter", name, f"{how.name.lower()}, {factors}", *map(_described, tensors))
    reductions = [_reduction(how, each, name) for each in tensors]
    if not all(each.dim() for each in tensors):
        raise UsageError(f"{text}: a scalar has no rows: give it a dimension")

    outs: list[torch.Tensor] = []
    alone = any(len(each) < size for each in tensors)

    def start(members: Any) -> list[Any]:
        if alone:
            # Without it, who gets no rows would be done, and know nothing, as in a broadcast.
            dist.barrier(members, async_op=True).wait()
        works = []
        for each, reduction in zip(tensors, reductions, strict=True):
            source = each.detach()
            if prescale_factor != 1.0:
                scale(source := source.clone(), prescale_factor)
            parts = list(source.tensor_split(size))
            out = torch.empty_like(parts[number], memory_format=torch.contiguous_format)
            works.append(dist.reduce_scatter(out, parts, reduction, members, async_op=True))
            outs.append(out)
        return works

    def finish() -> list[torch.Tensor]:
        for out in outs:
            _averaged(out, how, size, postscale_factor)
        return outs

    return _started(process_set, text, start, finish, [REFUSED] * (1 if alone else len(tensors)))


def barrier(process_set: ProcessSet = global_process_set) -> None:
    """Wait until every process has called it."""

    def start(members: Any) -> list[Any]:
        return [dist.barrier(members, async_op=True)]

    _started(process_set, "barrier", start, lambda: None, [BARRIER]).wait()


def join(device: int = -1) -> int:
    """Say that this process has no more data. Block until all have called it, and return the last one.

    Until then, it gives zeros to the all-reduces of the others, also to their minima and products, and means
    still divide by the number of all; and it takes part in their barriers. Other operations of all processes
    raise Disagreement at those that call them, and operations of a set wait for its members. Zeros for CUDA
    tensors are on this `device`, or on the current one. Raises HorovodInternalError if a process is lost.
    """
    with internal_errors():
        return joining().join(device)
