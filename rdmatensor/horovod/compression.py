# SPDX-License-Identifier: Apache-2.0
"""Define what a compression does to a tensor, for every framework."""

from __future__ import annotations

from typing import Any


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
