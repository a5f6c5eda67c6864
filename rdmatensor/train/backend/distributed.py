# SPDX-License-Identifier: Apache-2.0
"""Let Keras optimizers communicate: what that takes on every framework."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from importlib import import_module
from typing import Any

from ...errors import UsageError
from ..run.session import Session
from ..sync.base import Gradients, Synchronizer
from . import mixin
from .base import framework
from .names import plain
from .optimizers import described, settings_in


class OptimizerHooks:
    """Hooks of callbacks() and save() for synchronizers that divide an optimizer's state.

    Here, they do nothing.

    All processes call its methods together.
    """

    def front(self, optimizer: Any, run: Session) -> type | None:
        """Return the class to put in front of the optimizer's, or None for the usual one."""
        return None

    def shared(self, optimizer: Any) -> list[Any]:
        """Return the optimizer's variables that are equal in all processes."""
        return list(optimizer.variables)

    def gather(self, optimizer: Any) -> None:
        """Bring the state together before rank 0 saves the optimizer."""

    def scatter(self, optimizer: Any) -> None:
        """Divide what rank 0 has loaded."""

    def release(self, optimizer: Any) -> None:
        """Forget what `gather` brought."""

    def changed(self, optimizer: Any) -> AbstractContextManager[None]:
        """Let a callback change whole variables of the optimizer, in eager code, within the block."""
        return nullcontext()

    def resume(self, model: Any, optimizer: Any) -> None:
        """Begin an epoch."""

    def settle(self, optimizer: Any) -> None:
        """Let the model have all of its weights, before it is validated and after each epoch."""

    def leave(self, model: Any, optimizer: Any) -> None:
        """End a fit."""


class _OfProcesses:
    """The group of an optimizer that none was given: one that was made from another one's configuration."""

    def __get__(self, optimizer: Any, owner: type) -> Any:
        if optimizer is None:
            return self
        raise UsageError(
            f"{optimizer.name} was made from the configuration of a distributed optimizer, which says "
            "nothing of other processes: call distribute() for it, too"
        )


class Communicating:
    """The base of what each framework puts in front of the class of an optimizer.

    A framework adds `apply`, and says how processes agree, compare their weights and change gradients.
    """

    name: str
    _rdmatensor_run: Session = _OfProcesses()  # type: ignore[assignment]
    _rdmatensor_sync: Synchronizer
    _rdmatensor_described: str
    _rdmatensor_agreed: set[Any]
    _rdmatensor_variables: Sequence[Any] = ()
    compared = False
    """Whether processes are known to have begun with equal weights."""

    def _clip_gradients(self, grads: Sequence[Any]) -> Any:
        # With accumulation, Keras comes here in the steps that update the model, and only those communicate.
        optimizer: Any = self
        if optimizer.gradient_accumulation_steps is not None:
            grads = self._rdmatensor_reduce(grads, self._rdmatensor_variables)
        return super()._clip_gradients(grads)  # type: ignore[misc]

    def _backend_apply_gradients(self, grads: Sequence[Any], variables: Sequence[Any]) -> None:
        object.__setattr__(self, "_rdmatensor_variables", variables)
        super()._backend_apply_gradients(grads, variables)  # type: ignore[misc]

    def _rdmatensor_agree(self, variables: Sequence[Any]) -> None:
        """Make sure, once, that all processes train the same variables in the same way."""
        found = self._rdmatensor_run.generation, tuple(id(each) for each in variables)
        if found not in self._rdmatensor_agreed:
            heading = f"how {plain(self.name)} trains, and its variables"
            self._rdmatensor_tell(variables, heading, self._rdmatensor_settings)
            self._rdmatensor_agreed.add(found)
        if not self.compared:
            object.__setattr__(self, "compared", True)
            self._rdmatensor_compare(variables)

    def _rdmatensor_settings(self) -> list[str]:
        """Return what has to be equal for models to stay equal."""
        optimizer: Any = self
        sync, lines = self._rdmatensor_sync, [self._rdmatensor_described]
        if sync.waits and not sync.apart:
            lines += [type(optimizer).__name__, *settings_in(optimizer.get_config())]
        return lines

    def _rdmatensor_reduce(self, grads: Sequence[Any], variables: Sequence[Any]) -> Any:
        """Return gradients as the synchronizer changes them."""
        if not isinstance(self._rdmatensor_sync, Gradients):
            return list(grads)
        return self._rdmatensor_gradients(grads, variables)

    def _rdmatensor_tell(
        self, variables: Sequence[Any], heading: str, lines: Callable[[], list[str]]
    ) -> None:
        """Fail in all processes if they have different variables or lines."""
        raise NotImplementedError

    def _rdmatensor_compare(self, variables: Sequence[Any]) -> None:
        """Raise UsageError if processes begin with different weights."""
        raise NotImplementedError

    def _rdmatensor_gradients(self, grads: Sequence[Any], variables: Sequence[Any]) -> Any:
        """Return gradients as a synchronizer of gradients changes them."""
        raise NotImplementedError


def put_in_front(optimizer: Any, run: Session, sync: Synchronizer) -> None:
    """Give the optimizer a class that communicates, with the name and module of its own.

    Raises Unsupported for synchronizers that the framework has no class for.
    """
    home = import_module(f"{__package__}.{framework()}.optimizer")
    if isinstance(optimizer, Communicating):  # made from the configuration of another one
        mixin.remove(optimizer)
    front, attributes = home.front_of(optimizer, run, sync)
    mixin.add(
        optimizer,
        front,
        _rdmatensor_run=run,
        _rdmatensor_sync=sync,
        _rdmatensor_described=described(sync),
        _rdmatensor_agreed=set(),
        **attributes,
    )


def move_outwards(optimizer: Any) -> None:
    """Correct an optimizer that compile() wrapped after distribute().

    A model with a policy of its own is wrapped there. Whether a step is skipped would be decided before the
    gradients are averaged, by each process for itself.
    """
    inner = getattr(optimizer, "inner_optimizer", None)
    if isinstance(optimizer, Communicating) or not isinstance(inner, Communicating):
        return
    run, sync = inner._rdmatensor_run, inner._rdmatensor_sync
    mixin.remove(inner)
    put_in_front(optimizer, run, sync)


def averages_gradients(sync: Synchronizer) -> bool:
    """Return whether the gradients of each step become their mean over all processes."""
    return isinstance(sync, Gradients) and sync.averages


def hooks_of(sync: Synchronizer) -> OptimizerHooks:
    """Return the hooks of a synchronizer for callbacks() and save()."""
    return sync if isinstance(sync, OptimizerHooks) else OptimizerHooks()
