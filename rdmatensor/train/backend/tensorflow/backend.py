# SPDX-License-Identifier: Apache-2.0
"""Implement Backend in TensorFlow."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from ...._api.plugin import library
from ...._ffi import ffi
from ..base import Array, Backend
from ..interim import watch_fits
from . import gradients, operations
from .synchronized import synchronize_moments

if TYPE_CHECKING:
    from ....device import Device
    from ....group import Group


class TensorFlow(Backend):
    """TensorFlow as sync/ and run/ see it; see Backend."""

    def load(self) -> None:
        """Load the library of operations."""
        operations.library()

    def begin(self, together: Callable[[], Any]) -> None:
        """Watch fits, and synchronize moments of batches."""
        watch_fits()
        synchronize_moments(together)

    def share(self, device: Device) -> Any:
        """Put tensors where the device's peers can read them. Return an address for `unshare`."""
        function = library().rdt_tf_arena_share
        function.restype, function.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
        return function(int(ffi.cast("intptr_t", device._handle)))

    def unshare(self, shared: Any) -> None:
        """Keep tensors out of the device's memory from now on."""
        function = library().rdt_tf_arena_unshare
        function.restype, function.argtypes = None, [ctypes.c_void_p]
        function(shared)

    def join(self, device: Device, group: Group, timeout: float, left: Any) -> Any:
        """Return the group as a resource of TensorFlow."""
        with tf.init_scope():  # it may be called while a step is traced
            return operations.handle_of(device, group, timeout, left)

    def leave(self, handle: Any, release: bool) -> None:
        """Run the operation that ends those of the group."""
        operations.library().rdmatensor_leave(handle, release=release)

    def all_reduce(self, members: Any, array: Array, op: Any, name: str) -> Array:
        """Run the operation."""
        return _numpy(operations.all_reduce(members, array, op, name))

    def all_gather(self, members: Any, array: Array, name: str) -> Array:
        """Run the operation."""
        return _numpy(operations.all_gather(members, array, name))

    def broadcast(self, members: Any, array: Array, root: int, name: str) -> Array:
        """Run the operation."""
        return _numpy(operations.broadcast(members, array, root, name))

    def mean(self, members: Any, grads: Sequence[Any], *how: Any) -> list[Any]:
        """Average gradients in buckets."""
        return gradients.mean(members, grads, *how)

    def as_vector(self, members: Any, grads: Sequence[Any], *how: Any) -> list[Any]:
        """Change gradients as one vector of float32."""
        return gradients.as_vector(members, grads, *how)


def _numpy(tensor: Any) -> Array:
    array: Array = tensor.numpy()
    return array
