# SPDX-License-Identifier: Apache-2.0
"""Copy parameters, states of optimizers and Python objects between processes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch

from ...errors import UsageError
from ..pickles import dumps, loads
from . import operations
from .gradients import allgather
from .operations import synchronize
from .process import ProcessSet, global_process_set, rank


def broadcast_parameters(
    params: Mapping[str, Any] | Iterable[Any],
    root_rank: int,
    process_set: ProcessSet = global_process_set,
) -> None:
    """Set tensors to their values in `root_rank`, a rank among all processes, in place.

    `params` are a state_dict(), named_parameters() or parameters(). Those of all processes agree in number,
    order, type, shape and name, or all get Disagreement. Raises UsageError for what is no tensor, and
    HorovodInternalError if a process is lost.
    """
    pairs = list(params.items()) if isinstance(params, Mapping) else list(params)
    named = [
        each if isinstance(each, tuple) else (f"parameter {i}", each)
        for i, each in enumerate(pairs)
    ]
    for name, each in named:
        if not isinstance(each, torch.Tensor):
            raise UsageError(
                f"broadcast_parameters: {name} is a {type(each).__name__}: give tensors, and use "
                "broadcast_object for others"
            )
    handles = [
        operations.broadcast_async_(each, root_rank, name, process_set) for name, each in named
    ]
    for handle in handles:
        synchronize(handle)


def broadcast_optimizer_state(
    optimizer: torch.optim.Optimizer, root_rank: int, model: Any = None
) -> None:
    """Set the state and the options of an optimizer to those in `root_rank`.

    The optimizers of the others may have no state yet. `model` is not used. Raises Disagreement or ValueError
    if optimizers have different parameters, and HorovodInternalError if a process is lost.
    """
    tensors: list[torch.Tensor] = []
    state = optimizer.state_dict()
    root = rank() == root_rank
    form = broadcast_object(
        _outline(state, tensors) if root else None, root_rank, "state of an optimizer"
    )
    if not root:
        form = _filled(form, tensors)
    broadcast_parameters(tensors, root_rank)
    if not root:
        optimizer.load_state_dict(form)


class _Tensor(tuple):  # type: ignore[type-arg]
    """The shape and the type of a tensor, and the type of its device."""

    __slots__ = ()


def _outline(value: Any, tensors: list[torch.Tensor]) -> Any:
    """Return a value without its tensors, which are appended to `tensors`."""
    if isinstance(value, torch.Tensor):
        tensors.append(value)
        return _Tensor((tuple(value.shape), value.dtype, value.device.type))
    if isinstance(value, dict):
        return {key: _outline(each, tensors) for key, each in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_outline(each, tensors) for each in value)
    return value


def _filled(value: Any, tensors: list[torch.Tensor]) -> Any:
    """Return a value with new tensors, which are appended to `tensors`, in the place of their outlines."""
    if isinstance(value, _Tensor):
        shape, dtype, device = value
        tensors.append(torch.empty(shape, dtype=dtype, device=device))
        return tensors[-1]
    if isinstance(value, dict):
        return {key: _filled(each, tensors) for key, each in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_filled(each, tensors) for each in value)
    return value


def _bytes(obj: Any) -> torch.Tensor:
    return torch.frombuffer(bytearray(dumps(obj)), dtype=torch.uint8)


def broadcast_object(
    obj: Any,
    root_rank: int = 0,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Return the object of `root_rank`, a rank among all processes, which pickle can copy."""
    called, here = name or "broadcast_object", rank() == root_rank
    data = _bytes(obj) if here else torch.empty(0, dtype=torch.uint8)
    size = torch.tensor([len(data)])
    operations.broadcast_(size, root_rank, f"size of {called}", process_set)
    if not here:
        data = torch.empty(int(size), dtype=torch.uint8)
    operations.broadcast_(data, root_rank, called, process_set)
    return obj if here else loads(data.numpy().tobytes())


def allgather_object(
    obj: Any, name: str | None = None, process_set: ProcessSet = global_process_set
) -> list[Any]:
    """Return the objects of all processes, by rank."""
    called, data = name or "allgather_object", _bytes(obj)
    sizes = allgather(torch.tensor([len(data)]), f"size of {called}", process_set)
    every = allgather(data, called, process_set)
    return [loads(each.numpy().tobytes()) for each in every.split(sizes.tolist())]
