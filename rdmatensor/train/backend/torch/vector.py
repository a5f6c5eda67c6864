# SPDX-License-Identifier: Apache-2.0
"""Keep parameters of PyTorch as one vector, which synchronizers change."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ....group import Group
from ..base import Array


class Vector:
    """The vector of some tensors: float64 if one of them is, else float32, in memory of the group.

    Not thread-safe.
    """

    def __init__(self, group: Group, tensors: Sequence[Any]) -> None:
        self._tensors = list(tensors)
        sizes = [each.numel() for each in tensors]
        double = any(each.dtype is torch.float64 for each in tensors)
        self.x: Array = group.empty(sum(sizes), "float64" if double else "float32")
        parts = torch.from_numpy(self.x).split(sizes)
        self._views = [
            part.view(each.shape) for part, each in zip(parts, self._tensors, strict=True)
        ]

    def take(self) -> Array:
        """Copy the tensors into the vector, and return it."""
        for view, each in zip(self._views, self._tensors, strict=True):
            view.copy_(each.detach())
        return self.x

    def give(self) -> None:
        """Copy the vector into the tensors."""
        with torch.no_grad():
            for view, each in zip(self._views, self._tensors, strict=True):
                each.copy_(view)
