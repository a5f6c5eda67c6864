# SPDX-License-Identifier: Apache-2.0
"""What torch's operations that move tensors are for a group of `size` members."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from .arrays import assign, dense, flat, joined, spread, target
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


def all_gather_list(what: str, outs: Tensors, tensor: torch.Tensor, size: int) -> Part:
    """Return the operation that copies the tensors of all members into `outs`."""
    check_parts(what, outs, size, tensor)
    buffer = torch.empty(size * tensor.numel(), dtype=tensor.dtype)
    arguments = {"array": flat(dense(tensor)), "out": flat(buffer)}
    return Part("all_gather", arguments, lambda: spread(buffer, outs))


def gather(outs: Tensors, tensor: torch.Tensor, size: int, root: int, rank: int) -> Part:
    """Return the operation that copies the tensors of all members into the `outs` of the root."""
    if rank == root:
        return all_gather_list("gather", outs, tensor, size)
    buffer = torch.empty(size * tensor.numel(), dtype=tensor.dtype)
    return Part("all_gather", {"array": flat(dense(tensor)), "out": flat(buffer)})


def scatter(out: torch.Tensor, given: Tensors, size: int, root: int, rank: int) -> Part:
    """Return the operation that copies tensor `i` of the root's `given` to `out` of rank `i`."""
    if rank == root:
        check_parts("scatter", given, size, out)
        buffer = joined(given)
    else:
        buffer = torch.empty(size * out.numel(), dtype=out.dtype)
    mine = buffer.view(size, -1)[rank]
    return Part("broadcast", {"array": flat(buffer), "root": root}, lambda: assign(out, mine))


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
    return Part("all_to_all", {"array": flat(dense(tensor)), "out": flat(to)}, finish)


def all_to_all_list(outs: Tensors, given: Tensors, size: int) -> Part:
    """Return the operation that exchanges lists of tensors."""
    check_parts("all_to_all", given, size, given[0])
    check_parts("all_to_all", outs, size, given[0])
    source = joined(given)
    to = source.new_empty(sum(each.numel() for each in outs))
    return Part("all_to_all", {"array": flat(source), "out": flat(to)}, lambda: spread(to, outs))
