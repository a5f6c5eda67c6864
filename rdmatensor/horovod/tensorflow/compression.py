# SPDX-License-Identifier: Apache-2.0
"""Name the types in which gradients travel."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from ..compression import Compressor, NoneCompressor

__all__ = ["Compression", "Compressor", "FP16Compressor", "NoneCompressor"]


class FP16Compressor(Compressor):
    """Floats travel as float16."""

    @staticmethod
    def compress(tensor: Any) -> tuple[Any, Any]:
        """Return the tensor as float16, if it has floats, and its type."""
        sent = tf.cast(tensor, tf.float16) if tensor.dtype.is_floating else tensor
        return sent, tensor.dtype

    @staticmethod
    def decompress(tensor: Any, ctx: Any) -> Any:
        """Return the tensor in its type."""
        return tf.cast(tensor, ctx)


class Compression:
    """The compressions that there are."""

    none = NoneCompressor
    fp16 = FP16Compressor
