# SPDX-License-Identifier: Apache-2.0
"""Name the types in which gradients travel."""

from __future__ import annotations

from typing import Any

import torch


class Compressor:
    """The base of compressions: programs derive theirs from it."""

    @staticmethod
    def compress(tensor: Any) -> tuple[Any, Any]:
        """Return what travels, and what `decompress` needs besides it."""
        return tensor, None

    @staticmethod
    def decompress(tensor: Any, ctx: Any) -> Any:
        """Return the tensor as it was before `compress`."""
        return tensor


class NoneCompressor(Compressor):
    """Tensors travel as they are."""


class FP16Compressor(Compressor):
    """Floats travel as float16."""

    @staticmethod
    def compress(tensor: Any) -> tuple[Any, Any]:
        """Return the tensor as float16, if it has floats, and its type."""
        sent = tensor.to(torch.float16) if tensor.dtype.is_floating_point else tensor
        return sent, tensor.dtype

    @staticmethod
    def decompress(tensor: Any, ctx: Any) -> Any:
        """Return the tensor in its type."""
        return tensor.to(ctx)


class Compression:
    """The compressions that there are."""

    none = NoneCompressor
    fp16 = FP16Compressor
