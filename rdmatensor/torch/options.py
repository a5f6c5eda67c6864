# SPDX-License-Identifier: Apache-2.0
"""The options of torch's operations, which callers give as one object or as single arguments."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch


def options(kind: Any, given: Any, timeout: timedelta | None = None, **fields: Any) -> Any:
    """Return `given` if it is an object of options, else new options.

    `given` may also be the value of the first field, or the time-out; a field that is None has torch's
    default.
    """
    if isinstance(given, kind):
        return given
    made = kind()
    if isinstance(given, timedelta):
        timeout = given
    elif given is not None:
        fields[next(iter(fields))] = given
    for name, value in fields.items():
        if value is not None:
            setattr(made, name, value)
    if timeout is not None:
        made.timeout = timeout
    return made


def one(what: str, tensors: Sequence[torch.Tensor] | torch.Tensor) -> torch.Tensor:
    """Return the tensor of an operation, which may stand in a list. Raises RuntimeError unless it is one."""
    if isinstance(tensors, torch.Tensor):
        return tensors
    if len(tensors) != 1:
        raise RuntimeError(f"{what} takes one tensor of each process, not {len(tensors)}")
    return tensors[0]


def several(what: str, tensors: Sequence[Any]) -> list[torch.Tensor]:
    """Return the tensors of an operation, one for each rank, which may stand in a list of one list."""
    if not tensors or isinstance(tensors[0], torch.Tensor):
        return list(tensors)
    if len(tensors) != 1:
        raise RuntimeError(f"{what} takes one list of tensors of each process, not {len(tensors)}")
    return list(tensors[0])


def check_parts(what: str, parts: Sequence[torch.Tensor], count: int, like: torch.Tensor) -> None:
    """Raise RuntimeError unless there are `count` tensors of the dtype of `like`."""
    if len(parts) != count:
        raise RuntimeError(f"{what} needs {count} tensors, one for each rank, and got {len(parts)}")
    for each in parts:
        check_dtype(what, each, like)


def check_dtype(what: str, tensor: torch.Tensor, like: torch.Tensor) -> None:
    """Raise RuntimeError unless both tensors have one dtype."""
    if tensor.dtype is not like.dtype:
        raise RuntimeError(f"{what}: one tensor has dtype {tensor.dtype}, another {like.dtype}")


def check_size(what: str, tensor: torch.Tensor, count: int) -> None:
    """Raise RuntimeError unless the tensor has `count` elements."""
    if tensor.numel() != count:
        raise RuntimeError(
            f"{what}: a tensor of shape {tuple(tensor.shape)} has not {count} elements"
        )
