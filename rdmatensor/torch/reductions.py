# SPDX-License-Identifier: Apache-2.0
"""What torch's reductions of tensors are for a group."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from .arrays import BFLOAT16, Finish, assign, dense, target

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
_FLOAT8 = (
    torch.float8_e4m3fn,
    torch.float8_e4m3fnuz,
    torch.float8_e5m2,
    torch.float8_e5m2fnuz,
)


class Reduction(NamedTuple):
    """Operands as a group takes them, and what to do when it is done.

    `tensor` is dense; `finish` copies a result that was written into it to the tensor that was given.
    """

    tensor: torch.Tensor
    op: str
    factor: float | None
    finish: Finish | None

    @property
    def how(self) -> dict[str, Any]:
        """The arguments of the group's operation that say how values are combined."""
        return {"op": self.op} if self.factor is None else {"op": self.op, "factor": self.factor}


def name_of(op: Any, dtype: torch.dtype) -> tuple[str, float | None]:
    """Return the group's name of a torch.distributed.ReduceOp, and the factor of a premultiplied sum.

    Raises RuntimeError if values of this type cannot be combined so.
    """
    kind = getattr(op, "op", op)
    name: str = kind.name
    if name == "PREMUL_SUM":
        return "sum", float(op.__getstate__()[1])
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
        raise RuntimeError(f"Cannot use ReduceOp.{name} with the backend rdmatensor")
    return (_OF_BOOL[found] if dtype is torch.bool else found), None


def in_place(tensor: torch.Tensor, op: Any) -> Reduction:
    """Return the reduction of a tensor whose result replaces it."""
    name, factor = name_of(op, tensor.dtype)
    if _needs_float32(tensor.dtype):
        wide = tensor.detach().to(torch.float32, memory_format=torch.contiguous_format)
        return Reduction(wide, name, factor, lambda: assign(tensor, wide))
    made, finish = target(tensor)
    return Reduction(_as_numbers(made), name, factor, finish)


def into(out: torch.Tensor, tensor: torch.Tensor, op: Any) -> tuple[torch.Tensor, Reduction]:
    """Return where the result of a reduction of `tensor` goes on its way to `out`, and the reduction."""
    name, factor = name_of(op, tensor.dtype)
    if _needs_float32(tensor.dtype):
        wide = torch.empty(out.shape, dtype=torch.float32)
        source = tensor.detach().to(torch.float32, memory_format=torch.contiguous_format)
        return wide, Reduction(source, name, factor, lambda: assign(out, wide))
    made, finish = target(out)
    return _as_numbers(made), Reduction(_as_numbers(dense(tensor)), name, factor, finish)


def _needs_float32(dtype: torch.dtype) -> bool:
    return dtype in _FLOAT8 or (dtype is torch.bfloat16 and BFLOAT16 is None)


def _as_numbers(tensor: torch.Tensor) -> torch.Tensor:
    return torch.view_as_real(tensor.detach()) if tensor.is_complex() else tensor
