# SPDX-License-Identifier: Apache-2.0
"""Let a Keras optimizer on PyTorch use the gradients of all processes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from ....errors import Unsupported, UsageError
from ...run.session import Session
from ...sync.base import Gradients, Parameters, Synchronizer, average
from ..distributed import Communicating, OptimizerHooks
from ..names import plain
from ..optimizers import iterations_of, leaves_of
from .equal import label, refuse_different
from .vector import Vector


class Distributed(Communicating):
    """The class that `distribute` puts in front of that of an optimizer."""

    _rdmatensor_exchange: Exchange | None = None

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def apply(self, grads: Sequence[Any], trainable_variables: Any = None) -> Any:
        """Apply synchronized gradients, and let the synchronizer exchange parameters when it is due."""
        optimizer: Any = self
        if trainable_variables is not None:
            trainable_variables = list(trainable_variables)
        variables = trainable_variables or optimizer._trainable_variables
        self._rdmatensor_run.check()
        self._rdmatensor_agree(variables)
        if optimizer.gradient_accumulation_steps is None:
            grads = self._rdmatensor_reduce(grads, variables)
        exchange = self._rdmatensor_exchange
        if exchange is not None:
            exchange.before(variables)
        result = super().apply(grads, trainable_variables)  # type: ignore[misc]
        if exchange is not None:
            # Steps that only accumulate, or that a loss scale skips, do not count.
            exchange.after(
                int(iterations_of(optimizer)), float(leaves_of(optimizer)[0].learning_rate)
            )
        return result

    def _rdmatensor_tell(
        self, variables: Sequence[Any], heading: str, lines: Callable[[], list[str]]
    ) -> None:
        run = self._rdmatensor_run
        of_variables = [f"{label(each)} {each.dtype} {list(each.shape)}" for each in variables]
        if run.group is not None:
            detail = "\n".join([heading, *lines(), *of_variables])
            run.group.barrier(timeout=run.timeout, detail=detail)

    def _rdmatensor_compare(self, variables: Sequence[Any]) -> None:
        refuse_different(self._rdmatensor_run, variables)

    def _rdmatensor_gradients(self, grads: Sequence[Any], variables: Sequence[Any]) -> Any:
        sync: Any = self._rdmatensor_sync
        sync.names = [label(each) for each in variables]
        return sync.gradients(self._rdmatensor_run, list(grads), plain(self.name))


class Exchange:
    """The parameters of one optimizer as a vector, which the synchronizer changes when it is due."""

    def __init__(self, run: Session, sync: Parameters) -> None:
        self._run, self.sync = run, sync
        self._generation = run.generation
        self._next = 0
        self._variables: list[Any] = []
        self._vector: Vector | None = None
        self._own: list[torch.Tensor] = []
        """While models are settled: the parameters with which this process goes on."""
        run.closing.append(sync.close)

    def before(self, variables: Sequence[Any]) -> None:
        """Begin, before the first update of these variables."""
        if [*map(id, variables)] == [*map(id, self._variables)]:
            return
        if self._generation != self._run.generation:
            raise UsageError(
                f"{type(self.sync).__name__} has served a group that was left: call distribute() for a new "
                "optimizer, with a new synchronizer"
            )
        assert self._run.group is not None
        self._variables = list(variables)
        self.sync.shapes = [tuple(each.shape) for each in variables]
        self._vector = Vector(self._run.group, [each.value for each in variables])
        self._next = self.sync.begin(self._run, self._vector.take())

    def after(self, step: int, learning_rate: float) -> None:
        """Exchange, if it is due, after an update."""
        if step < self._next or self._vector is None:
            return
        following = self.sync.exchange(self._vector.take(), step, learning_rate)
        if following <= step:
            raise UsageError(f"{type(self.sync).__name__} wants step {following} after {step}")
        self._next = following
        self._vector.give()

    def conclude(self, step: int) -> None:
        """Let the synchronizer bring the models together when training ends."""
        self._own.clear()
        if self._vector is not None:
            self.sync.conclude(self._vector.take(), step)
            self._vector.give()

    def settle(self) -> None:
        """Set the parameters to their means over all processes until `part`, where models differ."""
        if self._vector is None or not self.sync.apart or self._own:
            return
        self._own = [each.value.detach().clone() for each in self._variables]
        if average(self._run, self._vector.take(), "the models, to look at them"):
            self._vector.give()

    def part(self) -> None:
        """Give this process its own parameters back."""
        with torch.no_grad():
            for variable, value in zip(self._variables, self._own, strict=bool(self._own)):
                variable.value.copy_(value)
        self._own.clear()


def front_of(optimizer: Any, run: Session, sync: Synchronizer) -> tuple[type, dict[str, Any]]:
    """Return the class to put in front of an optimizer's, and attributes of the optimizer.

    Raises Unsupported for synchronizers that divide the state of optimizers.
    """
    if isinstance(sync, OptimizerHooks) or not isinstance(sync, (Gradients, Parameters)):
        raise Unsupported(
            f"{type(sync).__name__} divides optimizers of TensorFlow only: set KERAS_BACKEND=tensorflow, or "
            "use rt.sync.AllReduce()",
            "UNSUPPORTED",
        )
    exchange = Exchange(run, sync) if isinstance(sync, Parameters) else None
    return Distributed, {"_rdmatensor_exchange": exchange}
