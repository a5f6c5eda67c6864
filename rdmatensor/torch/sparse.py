# SPDX-License-Identifier: Apache-2.0
"""The sum of sparse tensors."""

from __future__ import annotations

from typing import Any

import torch

from .arrays import flat
from .calls import Calls, Part


def sum_sparse(calls: Calls, tensor: torch.Tensor, opts: Any) -> list[Part]:
    """Return the operations that add up the sparse tensors of all members, and put the sum into `tensor`.

    Members may have different numbers of values, which this function exchanges before it returns. Raises
    what calls raise.
    """
    own, size = tensor.detach().coalesce().cpu(), calls.group.size
    counts = torch.empty(size, dtype=torch.int64)
    count = {"array": flat(torch.tensor([own._nnz()])), "out": flat(counts)}
    calls.run("all_gather", opts, [], [Part("all_gather", count)]).wait()
    parts, gathered = [], []
    for rows in (own._indices().t(), own._values()):
        source = rows.new_zeros((int(counts.max()), *rows.shape[1:]))
        source[: len(rows)] = rows
        out = rows.new_empty((size, *source.shape))
        parts.append(Part("all_gather", {"array": flat(source), "out": flat(out)}))
        gathered.append(out)

    def finish() -> None:
        indices, values = (
            torch.cat([rows[:count] for rows, count in zip(out, counts.tolist(), strict=True)])
            for out in gathered
        )
        total = torch.sparse_coo_tensor(indices.t(), values, tensor.shape).coalesce()
        with torch.inference_mode():
            tensor.copy_(total.to(tensor.device))

    return [parts[0], parts[1]._replace(finish=finish)]
