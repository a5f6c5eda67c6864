# SPDX-License-Identifier: Apache-2.0
"""torch's tensors on a CUDA device, for a torch without CUDA: their bytes are in the memory of cuda_driver.c.

torch sees `is_cuda`, and no memory. Operations compute on the host and put their results back late, on the
tensor's own stream. Copies to the host wait for it and copies to the device are complete, as torch's are.
Views of parts are copies. Call cuda_tensors.load() first.
"""

from __future__ import annotations

import copy
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._pytree import tree_map

from support.cuda_tensors import Tensor

_aten = torch.ops.aten
# They return all of a tensor's bytes, where these are.
_VIEWS = (_aten.alias, _aten.detach, _aten.view, _aten.view_as_real, _aten._unsafe_view)


class CudaTensor(torch.Tensor):
    """The values of a tensor on the host, in the memory of a device."""

    memory: Tensor

    @staticmethod
    def __new__(
        cls, host: torch.Tensor, device: int = 0, memory: Tensor | None = None
    ) -> CudaTensor:
        made = torch.Tensor._make_wrapper_subclass(
            cls, host.shape, dtype=host.dtype, device=f"cuda:{device}"
        )
        if memory is None:
            memory = Tensor(_bytes_of(host), device)
            weakref.finalize(memory, Tensor.free, copy.copy(memory))
        made.memory = memory
        return made

    def host(self) -> torch.Tensor:
        """Return the values that have been computed so far: not those that come late."""
        return torch.from_numpy(self.memory.get()).view(self.dtype).view(self.shape)

    __torch_function__ = torch._C._disabled_torch_function_impl

    def copy_(self, values: torch.Tensor, non_blocking: bool = False) -> CudaTensor:
        # torch would look for its own support of CUDA before it dispatches this.
        try:
            self.memory.set(_bytes_of(_on_host(values).to(self.dtype).expand(self.shape)))
            self.memory.wait()
        except AssertionError as error:
            raise RuntimeError(f"CUDA error: {error}") from error
        return self

    @classmethod
    def __torch_dispatch__(
        cls, call: Callable[..., Any], types: Any, args: Any = (), options: Any = None
    ) -> Any:
        options = dict(options or {})
        to_host = options.get("device") == torch.device("cpu")
        if isinstance(options.get("device"), torch.device):
            options["device"] = torch.device("cpu")
        given = next((each for each in _tensors(args) if isinstance(each, CudaTensor)), None)
        result = call(*tree_map(_on_host, args), **options)
        if to_host or call is _aten.copy_.default or given is None:
            return result
        memory = given.memory if getattr(call, "overloadpacket", None) in _VIEWS else None
        device = given.device.index
        return tree_map(
            lambda each: (
                CudaTensor(each, device, memory) if isinstance(each, torch.Tensor) else each
            ),
            result,
        )


def _bytes_of(host: torch.Tensor) -> Any:
    return host.detach().contiguous().reshape(-1).view(torch.uint8).numpy()


def _on_host(given: Any) -> Any:
    if not isinstance(given, CudaTensor):
        return given
    given.memory.wait()
    return given.host()


def _tensors(given: Any) -> list[torch.Tensor]:
    if isinstance(given, torch.Tensor):
        return [given]
    if isinstance(given, (list, tuple)):
        return [found for each in given for found in _tensors(each)]
    return []
