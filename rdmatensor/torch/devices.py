# SPDX-License-Identifier: Apache-2.0
"""The backends of other devices than the CPU in one process group, such as "cpu:rdmatensor,cuda:nccl"."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from .arrays import no_backend

_Method = TypeVar("_Method", bound=Callable[..., Any])


class OtherDevices:
    """torch's process groups for the tensors that are not on the CPU, made when they are first needed.

    torch lets a process group in Python take the place of the whole group, and then asks no other backend. So
    this class asks them, for the devices that the program named. A `Backend` in Python is no alternative:
    torch wraps what its operations return into a Work that passes on wait() and get_future() only, and so
    is_completed() would never be true. `given` is what torch gives to the creator of a backend, and `choices`
    the options of the backends.
    """

    def __init__(self, given: Any, choices: Any) -> None:
        self._given = given
        self._choices = choices
        self._store = given.store
        self._lock = threading.Lock()
        self._named: dict[str, str] | None = None
        self._made: dict[str, Any] = {}

    def known(self, owner: Any) -> bool:
        """Return whether torch has entered `owner`, and so knows the backends that the program named."""
        return bool(self._text(owner))

    def named(self, owner: Any) -> dict[str, str]:
        """Return the backends of other devices, by type of device; none before torch has entered `owner`."""
        if self._named is None:
            text = self._text(owner)
            if not text:
                return {}
            pairs = [pair.partition(":") for pair in text.split(",")]
            self._named = {device: name for device, _, name in pairs if name != "rdmatensor"}
        return self._named

    def _text(self, owner: Any) -> str:
        try:
            return str(dist.get_backend_config(owner))
        except TypeError:
            return ""

    def group(self, owner: Any, device: str) -> Any:
        """Return the process group for tensors of this device.

        The members reach this by the same operation, as the backend may wait for the others here. Raises
        RuntimeError if the program has named no backend for the device.
        """
        with self._lock:
            found = self._made.get(device)
            if found is None:
                name = self.named(owner).get(device)
                if name is None:
                    raise no_backend(device)
                found = self._made[device] = self._make(device, name)
                found._set_group_name(owner.group_name)
                found._set_group_desc(owner.group_desc)
        return found

    def made(self) -> list[Any]:
        """Return the process groups that have been made."""
        with self._lock:
            return list(self._made.values())

    def _make(self, device: str, name: str) -> Any:
        plugin = dist.Backend._plugins.get(name.upper())
        if plugin is None:
            raise RuntimeError(
                f"torch {torch.__version__} lets no other backend make one of {name!r}: use torch 2.14 or "
                f"newer, or new_group(backend={name!r}) for tensors on {device}"
            )
        given = self._given
        store = dist.PrefixStore(f"{device}/", self._store)
        group = dist.ProcessGroup(store, given.group_rank, given.group_size)
        given.store = store
        if hasattr(given, "process_group"):
            given.process_group = group
        kind = dist.Backend.backend_type_map.get(name, dist.ProcessGroup.BackendType.CUSTOM)
        if plugin.extended_api:
            backend = plugin.creator_fn(given, self._choices)
        else:
            backend = plugin.creator_fn(store, given.group_rank, given.group_size, given.timeout)
        if isinstance(backend, dist.ProcessGroup):
            return backend
        group._set_default_backend(kind)
        group._register_backend(torch.device(device), kind, backend)
        return group


def routed(method: _Method) -> _Method:
    """Let an operation of a process group run in that of another device, if its tensors are there."""
    name = method.__name__

    @functools.wraps(method)
    def call(self: Any, *given: Any, **named: Any) -> Any:
        if not self._other_types():
            return method(self, *given, **named)
        device = device_of(*given, *named.values())
        if self._moves(device):
            return method(self, *given, **named)
        return getattr(self._for_device(device), name)(*given, **named)

    return call  # type: ignore[return-value]


def device_of(*given: Any) -> str:
    """Return the type of the device of the first tensor in the arguments, which may stand in lists."""
    for each in given:
        first = each
        while isinstance(first, (list, tuple)) and first:
            first = first[0]
        if isinstance(first, torch.Tensor):
            return "cpu" if first.is_cpu else str(first.device.type)
        if isinstance(first, torch.device):
            return str(first.type)
    return "cpu"
