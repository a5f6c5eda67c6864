# SPDX-License-Identifier: Apache-2.0
"""Define what training needs of a framework. sync/ and run/ call it, and import no framework themselves."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal

import numpy.typing as npt

from ..._api.extras import needed_by

if TYPE_CHECKING:
    from ...device import Device
    from ...group import Group

Array = npt.NDArray[Any]


class Backend(ABC):
    """A framework. Gradients are its tensors; handles are what its operations have of a group."""

    @abstractmethod
    def load(self) -> None:
        """Load the operations. Raises Unsupported if this version of the framework has none."""

    @abstractmethod
    def begin(self, together: Callable[[], Any]) -> None:
        """Prepare the framework for training with others, which are those of `together()` at any time."""

    @abstractmethod
    def share(self, device: Device) -> Any:
        """Put tensors where the device's peers can read them. Returns what `unshare` takes."""

    @abstractmethod
    def unshare(self, shared: Any) -> None:
        """End what `share` began, before the device closes."""

    @abstractmethod
    def join(self, device: Device, group: Group, timeout: float, left: Any) -> Any:
        """Return a handle of the group: `left`, that of an earlier group, if it is not None."""

    @abstractmethod
    def leave(self, handle: Any, release: bool) -> None:
        """End the operations of the group; with `release`, withdraw their memory."""

    @abstractmethod
    def all_reduce(self, members: Any, array: Array, op: str, name: str) -> Array:
        """Return the arrays of all members combined by `op`, as Group.all_reduce does, in eager code."""

    @abstractmethod
    def all_gather(self, members: Any, array: Array, name: str) -> Array:
        """Return the arrays of all members, joined along the first axis, in eager code."""

    @abstractmethod
    def broadcast(self, members: Any, array: Array, root: int, name: str) -> Array:
        """Return the array of the member `root`, in eager code."""

    @abstractmethod
    def mean(
        self,
        members: Any,
        gradients: Sequence[Any],
        bucket_bytes: int | Literal["auto"],
        wire: str | None,
        name: str,
        names: Sequence[str],
    ) -> list[Any]:
        """Return the mean of each gradient over all members, who send buckets of type `wire`.

        `names` are those of the variables. The operation fails if members have gradients of different ones.
        """

    @abstractmethod
    def as_vector(
        self,
        members: Any,
        gradients: Sequence[Any],
        change: Callable[[Array, Sequence[tuple[int, ...]], str], Array],
        name: str,
        names: Sequence[str],
    ) -> list[Any]:
        """Return gradients as `change` makes them of their vector, its shapes and what names it in errors.

        Rows of embeddings are averaged without it.
        """


def framework() -> str:
    """Return the name of Keras's backend: "tensorflow", "torch" or "jax". It imports Keras."""
    with needed_by("rdmatensor.train"):
        import keras
    return str(keras.config.backend())


@cache
def backend() -> Backend:
    """Return the framework that trains: PyTorch if Keras runs on it, and else TensorFlow."""
    name, kind = ("torch", "PyTorch") if framework() == "torch" else ("tensorflow", "TensorFlow")
    with needed_by("rdmatensor.train"):
        found: Backend = getattr(import_module(f"{__package__}.{name}.backend"), kind)()
    return found
