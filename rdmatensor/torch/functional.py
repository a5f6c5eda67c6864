# SPDX-License-Identifier: Apache-2.0
"""Functional collectives that torch 2.13's C++ cannot call at a process group in Python."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch._C import _distributed_c10d as c10d

from .operations import Operations

_NAMESPACE = "_c10d_functional"
_ORIGINAL = torch._C.DispatchKey.CompositeExplicitAutograd


def all_gather_into_tensor_out(
    input: torch.Tensor,  # noqa: A002
    group_size: int,
    group_name: Any,
    *,
    out: torch.Tensor,
) -> torch.Tensor:
    """Start all_gather_single() of the process group; wait_tensor() of the result waits for it."""
    group = _group(group_name)
    if not isinstance(group, Operations):
        call = torch.ops._c10d_functional.all_gather_into_tensor_out.default
        return call._op_dk(_ORIGINAL, input, group_size, group_name, out=out)
    c10d._register_work(out, group.all_gather_single(out, input))
    return out


def batch_p2p_ops(
    op_list: Sequence[str],
    peer_list: Sequence[int],
    tag_list: Sequence[int],
    tensors: Sequence[torch.Tensor],
    group_name: Any,
) -> list[torch.Tensor]:
    """Start sends and receives; wait_tensor() of each result waits for one, and a send's is empty."""
    group = _group(group_name)
    if not isinstance(group, Operations):
        call = torch.ops._c10d_functional.batch_p2p_ops.default
        given = op_list, peer_list, tag_list, tensors, group_name
        return call._op_dk(_ORIGINAL, *given)  # type: ignore[no-any-return]
    results = []
    for kind, peer, tag, tensor in zip(op_list, peer_list, tag_list, tensors, strict=True):
        sends = kind == "isend"
        work = (group.send if sends else group.recv)([tensor], peer, tag)
        results.append(tensor.new_empty(0) if sends else tensor)
        c10d._register_work(results[-1], work)
    return results


def _group(name: Any) -> Any:
    return c10d._resolve_process_group(name) if isinstance(name, str) else name


def register() -> Any:
    """Have torch call these for tensors on the CPU. They are in effect as long as the result lives."""
    library = torch.library.Library(_NAMESPACE, "IMPL")
    for call in (all_gather_into_tensor_out, batch_p2p_ops):
        if hasattr(getattr(torch.ops, _NAMESPACE), call.__name__):
            library.impl(call.__name__, call, "CPU")
    return library
