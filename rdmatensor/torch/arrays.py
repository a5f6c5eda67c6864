# SPDX-License-Identifier: Apache-2.0
"""The memory of CPU tensors as arrays of one dimension, which groups take."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from .._api.buffers import Array

Finish = Callable[[], None]

try:
    import ml_dtypes

    BFLOAT16: np.dtype[Any] | None = np.dtype(ml_dtypes.bfloat16)
except ImportError:
    BFLOAT16 = None

# As what numpy sees tensors whose dtype it lacks; their bytes are moved, not interpreted.
_VIEWS = {
    torch.bfloat16: torch.int16,
    torch.bool: torch.uint8,
    torch.complex32: torch.int32,
    torch.float8_e4m3fn: torch.uint8,
    torch.float8_e4m3fnuz: torch.uint8,
    torch.float8_e5m2: torch.uint8,
    torch.float8_e5m2fnuz: torch.uint8,
    torch.float8_e8m0fnu: torch.uint8,
}


def flat(tensor: torch.Tensor) -> Array:
    """Return the elements of a dense tensor, without a copy, as an array of one dimension.

    The array keeps the tensor's memory alive. Raises RuntimeError for a tensor that is not on the CPU.
    """
    view = _VIEWS.get(tensor.dtype)
    if view is not None:
        array: Array = tensor.detach().view(view).numpy()
        if BFLOAT16 is not None and tensor.dtype is torch.bfloat16:
            array = array.view(BFLOAT16)
    elif tensor.is_cpu:
        array = tensor.detach().numpy() if tensor.requires_grad else tensor.numpy()
    else:
        raise no_backend(tensor.device.type)
    return array if array.ndim == 1 else array.reshape(-1)


def no_backend(device: str) -> RuntimeError:
    """Return the error for tensors on a type of device for which the program has named no backend."""
    return RuntimeError(
        f"the backend rdmatensor moves CPU tensors, and this one is on {device}: name the backend of other "
        'devices too, such as init_process_group("cpu:rdmatensor,cuda:nccl"), or give them a process group '
        'of their own, such as new_group(backend="nccl")'
    )


def is_dense(tensor: torch.Tensor) -> bool:
    """Return whether the tensor's memory has its elements, in order and as they are."""
    return bool(tensor.is_contiguous()) and not tensor.is_conj() and not tensor.is_neg()


def dense(tensor: torch.Tensor) -> torch.Tensor:
    """Return the tensor if it is dense, else a dense copy."""
    if is_dense(tensor):
        return tensor
    return tensor.detach().resolve_conj().resolve_neg().contiguous()


def target(tensor: torch.Tensor) -> tuple[torch.Tensor, Finish | None]:
    """Return a dense tensor with the values of `tensor`, and what copies results from there to `tensor`.

    Without a copy, the tensor is the same, and there is nothing to do.
    """
    if is_dense(tensor):
        return tensor, None
    made = dense(tensor)
    return made, lambda: assign(tensor, made)


def assign(to: torch.Tensor, values: torch.Tensor) -> None:
    """Copy values into a tensor, unseen by autograd, as operations that write its memory do."""
    with torch.inference_mode():
        to.copy_(values.view(to.shape))


def joined(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return the elements of all tensors, one after the other, in new memory."""
    return torch.cat([each.detach().reshape(-1) for each in tensors])


def spread(values: torch.Tensor, to: Sequence[torch.Tensor]) -> None:
    """Copy values, one tensor after the other, into tensors."""
    start = 0
    for each in to:
        size = each.numel()
        assign(each, values[start : start + size])
        start += size


def unequal(tensors: Sequence[torch.Tensor]) -> dict[str, list[int]]:
    """Return the argument of a group's operation for parts of these sizes: none if they are equal."""
    counts = [each.numel() for each in tensors]
    return {} if len(set(counts)) == 1 else {"counts": counts}
