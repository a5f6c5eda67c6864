# SPDX-License-Identifier: Apache-2.0
"""The elements of tensors as arrays of one dimension, which groups take. Those of CUDA tensors are copies.

torch makes the copies: those to the host wait for the current stream, and those back are complete when they
return, on every stream.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from .._api.buffers import Array
from .._api.collective import dtype_code

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
_CODES: dict[torch.dtype, int | None] = {}


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


def code_of(dtype: torch.dtype) -> int | None:
    """Return the C library's number for the dtype of what flat() returns; None if it has none."""
    if dtype not in _CODES:
        _CODES[dtype] = dtype_code(flat(torch.empty(0, dtype=dtype)))
    return _CODES[dtype]


def no_backend(device: str) -> RuntimeError:
    """Return the error for tensors on a type of device for which the program has named no backend."""
    return RuntimeError(
        f"the backend rdmatensor moves CPU and CUDA tensors, and this one is on {device}: name the backend "
        'of other devices too, such as init_process_group("cpu:rdmatensor,xpu:xccl"), or give them a process '
        'group of their own, such as new_group(backend="xccl")'
    )


def is_dense(tensor: torch.Tensor) -> bool:
    """Return whether the tensor's memory has its elements on the host, in order and as they are."""
    on_host = tensor.is_cpu and bool(tensor.is_contiguous())
    return on_host and not tensor.is_conj() and not tensor.is_neg()


def dense(tensor: torch.Tensor) -> torch.Tensor:
    """Return the tensor if it is dense, else a dense copy on the host.

    Raises RuntimeError for a tensor that is neither on the CPU nor on a CUDA device.
    """
    if is_dense(tensor):
        return tensor
    if not (tensor.is_cpu or tensor.is_cuda):
        raise no_backend(tensor.device.type)
    return tensor.detach().resolve_conj().resolve_neg().contiguous().cpu()


def target(tensor: torch.Tensor) -> tuple[torch.Tensor, Finish | None]:
    """Return what dense() returns, and what copies results from there to `tensor`.

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
    """Return the elements of all tensors, one after the other, in new memory on the host."""
    return dense(torch.cat([each.detach().reshape(-1) for each in tensors]))


def room(tensor: torch.Tensor, elements: int) -> torch.Tensor:
    """Return new memory on the host for so many elements of the tensor's dtype."""
    return torch.empty(elements, dtype=tensor.dtype)


def spread(values: torch.Tensor, to: Sequence[torch.Tensor]) -> None:
    """Copy values, one tensor after the other, into tensors."""
    parts = values.split([each.numel() for each in to])
    with torch.inference_mode():
        for each, part in zip(to, parts, strict=True):
            each.copy_(part.view(each.shape))


def unequal(tensors: Sequence[torch.Tensor]) -> dict[str, list[int]]:
    """Return the argument of a group's operation for parts of these sizes: none if they are equal."""
    counts = [each.numel() for each in tensors]
    return {} if len(set(counts)) == 1 else {"counts": counts}


def cuda_devices(value: Any) -> list[torch.device]:
    """Return the CUDA devices of tensors, which may stand in lists, each once."""
    if isinstance(value, torch.Tensor):
        return [value.device] if value.is_cuda else []
    if not isinstance(value, (list, tuple)):
        return []
    return list(dict.fromkeys(device for each in value for device in cuda_devices(each)))
