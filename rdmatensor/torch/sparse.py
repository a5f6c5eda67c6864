# SPDX-License-Identifier: Apache-2.0
"""The sum of sparse tensors."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from ..group import Group, Operation
from .arrays import flat


class SparseSum:
    """The sum of the sparse tensors of all members, which replaces `tensor`.

    `limit` is the time-out of each operation in seconds.
    """

    def __init__(self, group: Group, tensor: torch.Tensor, limit: float) -> None:
        self._group = group
        self._tensor = tensor
        self._limit = limit
        self._counts: list[int] = []
        self._gathered: list[torch.Tensor] = []

    def start(self) -> Sequence[Operation]:
        """Start the operations. Raises what operations of the group raise.

        Members may have different numbers of values, which this call exchanges before it returns.
        """
        own, group = self._tensor.detach().coalesce(), self._group
        self._counts = group.all_gather(np.array([own._nnz()]), timeout=self._limit).tolist()
        most = max(self._counts)
        operations = []
        for rows in (own._indices().t(), own._values()):
            source = rows.new_zeros((most, *rows.shape[1:]))
            source[: len(rows)] = rows
            out = rows.new_empty((group.size, *source.shape))
            self._gathered.append(out)
            operations.append(
                group.start("all_gather", flat(source), flat(out), timeout=self._limit)
            )
        return operations

    def finish(self) -> None:
        """Put the sum into the tensor."""
        indices, values = (
            torch.cat([rows[:count] for rows, count in zip(out, self._counts, strict=True)])
            for out in self._gathered
        )
        total = torch.sparse_coo_tensor(indices.t(), values, self._tensor.shape).coalesce()
        with torch.inference_mode():
            self._tensor.copy_(total)
