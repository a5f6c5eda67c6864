# SPDX-License-Identifier: Apache-2.0
"""What torch's reductions of tensors are for a group."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist

from .arrays import BFLOAT16, Finish, assign, dense, flat, joined, spread, target, unequal
from .calls import Part
from .options import check_dtype, check_size

# By what torch has, because asking it for a name is slow.
_KINDS = {
    getattr(dist.ReduceOp, name): name
    for name in ("SUM", "AVG", "PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR", "PREMUL_SUM")
}
_NAMES = {"SUM": "sum", "AVG": "mean", "PRODUCT": "product", "MIN": "min", "MAX": "max"}
_BITWISE = {"BAND": "and", "BOR": "or", "BXOR": "xor"}
# Of truth values, which are the bytes 0 and 1.
_OF_BOOL = {
    "sum": "max",
    "product": "min",
    "min": "min",
    "max": "max",
    "and": "min",
    "or": "max",
    "xor": "xor",
}
# Copying so many bytes, there and back, takes no longer than starting an operation.
_COPIED = 64 << 10
_FLOAT8 = (
    torch.float8_e4m3fn,
    torch.float8_e4m3fnuz,
    torch.float8_e5m2,
    torch.float8_e5m2fnuz,
)


def name_of(op: Any, dtype: torch.dtype) -> tuple[str, float | None]:
    """Return the group's name of a torch.distributed.ReduceOp, and the factor of a premultiplied sum.

    Raises RuntimeError if values of this type cannot be combined so.
    """
    name = _KINDS.get(getattr(op, "op", op), "")
    if name == "PREMUL_SUM":
        return "scaled_sum", float(op.__getstate__()[1])
    if name in _BITWISE and (dtype.is_floating_point or dtype.is_complex):
        raise RuntimeError(f"Cannot use ReduceOp.{name} with {dtype}: it needs integers")
    if dtype.is_complex and name not in ("SUM", "AVG"):
        raise RuntimeError(
            f"Cannot use ReduceOp.{name} with {dtype}: complex numbers have no order"
        )
    if name == "AVG" and not (dtype.is_floating_point or dtype.is_complex):
        raise RuntimeError(f"Cannot use ReduceOp.AVG with {dtype}: it needs floating point")
    found = _NAMES.get(name) or _BITWISE.get(name)
    if found is None:
        raise RuntimeError(f"Cannot use {op} with the backend rdmatensor")
    return (_OF_BOOL[found] if dtype is torch.bool else found), None


def all_reduce(tensor: torch.Tensor, op: Any) -> Part:
    """Return the operation that combines the tensors of all members, in place."""
    how = _how(op, tensor.dtype)
    made, finish = _float32(tensor) if _needs_float32(tensor.dtype) else target(tensor)
    array = flat(_as_numbers(made))
    return Part("all_reduce", {"array": array, "out": array, **how}, finish)


def all_reduce_many(tensors: Sequence[torch.Tensor], op: Any) -> list[Part]:
    """Return the operations that combine each of several tensors of all members, in place.

    It is one for all, by way of a copy, if they are short and of one dtype. Members then compare their sizes.
    """
    nbytes = sum(each.numel() * each.element_size() for each in tensors)
    if len({each.dtype for each in tensors}) != 1 or nbytes > _COPIED * len(tensors):
        return [all_reduce(each, op) for each in tensors]
    values = joined(tensors)
    kind, arguments, back = all_reduce(values, op)

    def finish() -> None:
        if back is not None:
            back()
        spread(values, tensors)

    arguments["detail"] = f"elements of each tensor: {[each.numel() for each in tensors]}"
    return [Part(kind, arguments, finish)]


def reduce(tensor: torch.Tensor, op: Any, root: int, rank: int) -> Part:
    """Return the operation that combines the tensors of all members in that of the root."""
    how = _how(op, tensor.dtype)
    made, finish = _float32(tensor) if _needs_float32(tensor.dtype) else target(tensor)
    array = flat(_as_numbers(made))
    if rank != root:
        return Part("reduce", {"array": array, "root": root, **how})
    return Part("reduce", {"array": array, "out": array, "root": root, **how}, finish)


def reduce_scatter(out: torch.Tensor, tensor: torch.Tensor, op: Any, size: int) -> Part:
    """Return the operation that combines the tensors of `size` members, and gives each an equal part."""
    check_size("reduce_scatter", tensor, out.numel() * size)
    return _reduce_scatter(out, tensor, op, {})


def reduce_scatter_list(out: torch.Tensor, given: Sequence[torch.Tensor], op: Any) -> Part:
    """Return the operation that combines lists of tensors, and gives each member the one of its rank."""
    return _reduce_scatter(out, joined(given), op, unequal(given))


def _reduce_scatter(
    out: torch.Tensor, tensor: torch.Tensor, op: Any, counts: dict[str, list[int]]
) -> Part:
    check_dtype("reduce_scatter", out, tensor)
    how = _how(op, tensor.dtype)
    if _needs_float32(tensor.dtype):
        source, _ = _float32(tensor)
        to, finish = _float32(out)
    else:
        source = dense(tensor)
        to, finish = target(out)
    complex_parts = 2 if tensor.is_complex() else 1
    arguments = {"array": flat(_as_numbers(source)), "out": flat(_as_numbers(to)), **how}
    for name, sizes in counts.items():
        arguments[name] = [complex_parts * each for each in sizes]
    return Part("reduce_scatter", arguments, finish)


def _how(op: Any, dtype: torch.dtype) -> dict[str, Any]:
    """Return the arguments of the group's operation that say how values are combined."""
    name, factor = name_of(op, dtype)
    return {"op": name} if factor is None else {"op": name, "factor": factor}


def _needs_float32(dtype: torch.dtype) -> bool:
    return dtype in _FLOAT8 or (dtype is torch.bfloat16 and BFLOAT16 is None)


def _float32(tensor: torch.Tensor) -> tuple[torch.Tensor, Finish | None]:
    """Return a copy as float32 on the host, and what copies results from there to `tensor`."""
    wide = dense(tensor.detach()).to(torch.float32)
    return wide, lambda: assign(tensor, wide)


def _as_numbers(tensor: torch.Tensor) -> torch.Tensor:
    return torch.view_as_real(tensor.detach()) if tensor.is_complex() else tensor
