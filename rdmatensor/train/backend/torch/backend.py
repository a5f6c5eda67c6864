# SPDX-License-Identifier: Apache-2.0
"""Implement Backend in PyTorch, which runs eagerly: operations are those of the group itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Literal
from weakref import WeakKeyDictionary

import numpy as np
import torch

from ...._api import training
from ...run.membership import Membership
from ..base import Array, Backend
from ..buckets import bucket_bytes_of, buckets_of
from ..interim import watch_fits

if TYPE_CHECKING:
    from ....device import Device
    from ....group import Group


# Bytes from one bucket to the next, at least: a line of the processor's caches.
_APART = 64


class PyTorch(Backend):
    """PyTorch as sync/ and run/ see it; see Backend. The handle of a group is the group."""

    def __init__(self) -> None:
        self._memory: WeakKeyDictionary[Group, torch.Tensor] = WeakKeyDictionary()

    def load(self) -> None:
        """Do nothing: there is no library of operations."""

    def begin(self, together: Callable[[], Any]) -> None:
        """Watch fits, and count operations from now on."""
        watch_fits()
        run = together()
        _ = None if run is None else run.handle

    def share(self, device: Device) -> Any:
        """Do nothing: gradients are copied."""

    def unshare(self, shared: Any) -> None:
        """Do nothing."""

    def join(self, device: Device, group: Group, timeout: float, left: Any) -> Any:
        """Return the group, and count its operations."""
        training.count(group)
        return group

    def leave(self, handle: Any, release: bool) -> None:
        """Do nothing: closing the group ends its operations."""

    def all_reduce(self, members: Membership, array: Array, op: Any, name: str) -> Array:
        """Run the group's operation."""
        if members.group is None:
            return array
        return members.group.all_reduce(array, op=op, timeout=members.timeout, detail=name)

    def all_gather(self, members: Membership, array: Array, name: str) -> Array:
        """Run the group's operation."""
        if members.group is None:
            return array
        return members.group.all_gather(array, timeout=members.timeout, detail=name)

    def broadcast(self, members: Membership, array: Array, root: int, name: str) -> Array:
        """Run the group's operation."""
        if members.group is None:
            return array
        copy = np.array(array)
        members.group.broadcast(copy, root, timeout=members.timeout, detail=name)
        return copy

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def mean(
        self,
        members: Membership,
        gradients: Sequence[Any],
        bucket_bytes: int | Literal["auto"],
        wire: str | None,
        name: str,
        names: Sequence[str],
    ) -> list[Any]:
        """Average gradients in buckets. They are valid until the next call."""
        results = list(gradients)
        if members.group is None:
            return results
        sized = [
            (i, each.dtype, each.nbytes)
            for i, each in reversed([*enumerate(gradients)])
            if each is not None
        ]
        buckets = buckets_of(sized, bucket_bytes_of(members, bucket_bytes))
        places = self._places(
            members.group, [[gradients[i] for i in each] for each in buckets], wire
        )
        for number, (bucket, place) in enumerate(zip(buckets, places, strict=True)):
            parts = place.split([gradients[i].numel() for i in bucket])
            for i, part in zip(bucket, parts, strict=True):
                # Scaled first: the mean cannot overflow where the sum could.
                _scale(gradients[i].detach().reshape(-1), 1.0 / members.size, part)
            heading = f"gradients {number + 1} of {len(buckets)} of {name}"
            detail = "\n".join([heading, *(names[i] for i in bucket)])
            members.group.all_reduce(place, out=place, timeout=members.timeout, detail=detail)
            _put(results, bucket, place)
        return results

    def _places(
        self, group: Group, buckets: Sequence[Sequence[torch.Tensor]], wire: str | None
    ) -> list[torch.Tensor]:
        """Return where buckets travel: in memory of the group, which the next step uses again."""
        types = [bucket[0].dtype for bucket in buckets]
        if wire is not None:
            types = [getattr(torch, wire) if each == torch.float32 else each for each in types]
        sizes = [
            sum(each.numel() for each in bucket) * dtype.itemsize
            for bucket, dtype in zip(buckets, types, strict=True)
        ]
        starts = [*accumulate((-(-size // _APART) * _APART for size in sizes), initial=0)]
        memory = self._memory.get(group)
        if memory is None or memory.numel() < starts[-1]:
            memory = self._memory[group] = torch.from_numpy(group.empty(starts[-1], np.uint8))
        return [
            memory[start : start + size].view(dtype)
            for start, size, dtype in zip(starts, sizes, types, strict=False)
        ]

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def as_vector(
        self,
        members: Membership,
        gradients: Sequence[Any],
        change: Callable[[Array, Sequence[tuple[int, ...]], str], Array],
        name: str,
        names: Sequence[str],
    ) -> list[Any]:
        """Change gradients as one vector of float32."""
        results = list(gradients)
        present = [i for i, each in enumerate(gradients) if each is not None]
        if members.group is None or not present:
            return results
        flat = torch.cat(
            [gradients[i].detach().reshape(-1).to("cpu", torch.float32) for i in present]
        )
        detail = "\n".join([f"gradients of {name}", *(names[i] for i in present)])
        changed = change(flat.numpy(), [tuple(gradients[i].shape) for i in present], detail)
        _put(results, present, torch.from_numpy(changed))
        return results


def _scale(values: torch.Tensor, factor: float, target: torch.Tensor) -> None:
    if values.is_cpu:
        torch.mul(values, factor, out=target)
    else:
        target.copy_(values * factor)


def _put(tensors: list[Any], places: Sequence[int], flat: torch.Tensor) -> None:
    """Replace tensors by the parts of a vector, each with the type and the device of the one before."""
    parts = flat.split([tensors[i].numel() for i in places])
    for i, part in zip(places, parts, strict=True):
        tensors[i] = part.view(tensors[i].shape).to(tensors[i])
