# SPDX-License-Identifier: Apache-2.0
"""What torch's operations that move tensors are for a group of `size` members."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from .arrays import dense, flat, joined, room, spread, target, unequal
from .calls import Part
from .options import check_dtype, check_parts, check_size

Tensors = Sequence[torch.Tensor]


def all_gather(out: torch.Tensor, tensor: torch.Tensor, size: int) -> Part:
    """Return the operation that joins the tensors of all members in `out`."""
    what = "all_gather_into_tensor"
    check_size(what, out, tensor.numel() * size)
    check_dtype(what, out, tensor)
    to, finish = target(out)
    return Part("all_gather", {"array": flat(dense(tensor)), "out": flat(to)}, finish)


def all_gather_list(outs: Tensors, tensor: torch.Tensor, size: int) -> Part:
    """Return the operation that copies the tensors of all members into `outs`."""
    check_parts("all_gather", outs, size, tensor)
    buffer = room(tensor, sum(each.numel() for each in outs))
    arguments = {"array": flat(dense(tensor)), "out": flat(buffer), **unequal(outs)}
    return Part("all_gather", arguments, lambda: spread(buffer, outs))


def gather(outs: Tensors, tensor: torch.Tensor, size: int, root: int, rank: int) -> Part:
    """Return the operation that copies the tensors of all members into the `outs` of the root."""
    array = flat(dense(tensor))
    if rank != root:
        return Part("gather", {"array": array, "root": root})
    check_parts("gather", outs, size, tensor)
    buffer = room(tensor, size * tensor.numel())
    arguments = {"array": array, "out": flat(buffer), "root": root}
    return Part("gather", arguments, lambda: spread(buffer, outs))


def gather_single(out: torch.Tensor, tensor: torch.Tensor, size: int, root: int, rank: int) -> Part:
    """Return the operation that joins the tensors of all members in the `out` of the root."""
    array = flat(dense(tensor))
    if rank != root:
        return Part("gather", {"array": array, "root": root})
    what = "gather_single"
    check_size(what, out, tensor.numel() * size)
    check_dtype(what, out, tensor)
    to, finish = target(out)
    return Part("gather", {"array": array, "out": flat(to), "root": root}, finish)


def scatter(out: torch.Tensor, given: Tensors, size: int, root: int, rank: int) -> Part:
    """Return the operation that copies tensor `i` of the root's `given` to `out` of rank `i`."""
    to, finish = target(out)
    arguments = {"out": flat(to), "root": root}
    if rank == root:
        check_parts("scatter", given, size, out)
        arguments["array"] = flat(joined(given))
    return Part("scatter", arguments, finish)


def all_to_all(
    out: torch.Tensor,
    tensor: torch.Tensor,
    out_sizes: Sequence[int],
    sizes: Sequence[int],
    size: int,
) -> Part:
    """Return the operation that exchanges parts of first axes. Without sizes, all parts are equal."""
    check_dtype("all_to_all", out, tensor)
    to, finish = target(out)
    arguments: dict[str, Any] = {"array": flat(dense(tensor)), "out": flat(to)}
    sent, received = _counts(tensor, sizes, size), _counts(out, out_sizes, size)
    # Members may give sizes or leave them out, where they are equal: all do the same then. Only equal parts
    # can be exchanged in place.
    if sizes or out_sizes or out.data_ptr() != tensor.data_ptr():
        arguments["counts"], arguments["receive_counts"] = sent, received
    return Part("all_to_all", arguments, finish)


def all_to_all_list(outs: Tensors, given: Tensors, size: int) -> Part:
    """Return the operation that exchanges lists of tensors."""
    check_parts("all_to_all", given, size, given[0])
    check_parts("all_to_all", outs, size, given[0])
    source = joined(given)
    sent, received = ([each.numel() for each in tensors] for tensors in (given, outs))
    to = room(source, sum(received))
    arguments = {
        "array": flat(source),
        "out": flat(to),
        "counts": sent,
        "receive_counts": received,
    }
    return Part("all_to_all", arguments, lambda: spread(to, outs))


def _counts(tensor: torch.Tensor, sizes: Sequence[int], size: int) -> list[int]:
    """Return the elements of each part of a tensor, which `sizes` gives in rows. Raises RuntimeError."""
    rows = tensor.shape[0] if tensor.dim() else 1
    if not sizes:
        if rows % size:
            raise RuntimeError("Tensor's dim 0 does not divide equally across group size")
        return [tensor.numel() // size] * size
    if len(sizes) != size:
        raise RuntimeError("Number of tensor splits not equal to group size")
    if sum(sizes) != rows:
        raise RuntimeError("Split sizes doesn't match total dim 0 size")
    row = math.prod(tensor.shape[1:])
    return [each * row for each in sizes]
