# SPDX-License-Identifier: Apache-2.0
"""Reduce gradients in buckets, which start in one order in all processes.

Gradients may be complete in another order in each process, if their models take different ways. A bucket
starts once it is complete and all before it have started.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch

from ...errors import UsageError
from ..reductions import Average, ReduceOp
from .compression import Compression
from .operations import named, reduced, sparse_allreduce_async
from .process import ProcessSet, global_process_set, size

#: A bucket is full with so many bytes, as in DistributedDataParallel.
_FULL = 25 << 20


# By whose combiner the gradients of a parameter travel.
_OWNER = "_rdmatensor_combiner"


class WrongOrder(UsageError, AssertionError):
    """Methods of an optimizer were called in an order that loses gradients. Horovod: AssertionError."""


@dataclass
class Settings:
    """How gradients are combined."""

    op: ReduceOp = Average
    compression: Any = Compression.none
    predivide: float = 1.0
    sparse_as_dense: bool = False
    process_set: ProcessSet = global_process_set


@dataclass(eq=False)
class Bucket:
    """Parameters, the gradients of which travel together."""

    parameters: list[torch.nn.Parameter]
    names: list[str]
    ready: set[torch.nn.Parameter] = field(default_factory=set)
    """Those whose gradients are complete in this step."""
    ends: list[Callable[[], None]] = field(default_factory=list)
    """What waits for the operations that have started, and sets the gradients."""
    started: bool = False

    def start(self, how: Settings) -> None:
        """Start the reductions. A gradient that is missing is zero, as others may have one."""
        self.started = True
        dense: list[tuple[torch.Tensor, Any, Any]] = []
        names: list[str] = []
        for name, each in zip(self.names, self.parameters, strict=True):
            if each.grad is None:
                each.grad = torch.zeros_like(each)
            gradient = each.grad
            if gradient.is_sparse and not how.sparse_as_dense:
                self.ends.append(_rows(gradient, name, how))
                continue
            given = gradient.to_dense() if gradient.is_sparse else gradient
            dense.append((gradient, *how.compression.compress(given)))
            names.append(name)
        if dense:
            self.ends.append(_sums(dense, names, how))

    def finish(self) -> None:
        """Wait for the reductions, and be ready for the next step. Raises HorovodInternalError."""
        ends, self.ends = self.ends, []
        self.ready.clear()
        self.started = False
        for end in ends:
            end()


def _sums(
    gradients: Sequence[tuple[torch.Tensor, Any, Any]], names: Sequence[str], how: Settings
) -> Callable[[], None]:
    sent = [each for _, each, _ in gradients]
    text = named("gradients of", "a DistributedOptimizer", *names)
    factors = 1.0 / how.predivide, how.predivide
    handle = reduced(sent, sent, how.op, text, *factors, how.process_set)

    def end() -> None:
        for (gradient, _, kept), value in zip(gradients, handle.wait(), strict=True):
            _set(gradient, how.compression.decompress(value, kept))

    return end


def _rows(gradient: torch.Tensor, name: str, how: Settings) -> Callable[[], None]:
    wait = sparse_allreduce_async(gradient, name, how.op, how.process_set)
    return lambda: _set(gradient, wait())


def _set(gradient: torch.Tensor, value: torch.Tensor) -> None:
    if gradient is value:
        return
    if gradient.is_sparse:
        # copy_ would keep the old number of rows.
        value = value if value.is_sparse else value.to_sparse(gradient.sparse_dim())
        gradient.zero_().add_(value.to(gradient.dtype))
    else:
        gradient.copy_(value)


def cut(
    parameters: Iterable[tuple[str, torch.nn.Parameter]],
    together: Sequence[Sequence[torch.nn.Parameter]] = (),
) -> list[Bucket]:
    """Return buckets of parameters, from the last to the first, as gradients probably come.

    Parameters of a bucket have one type and device. Those that are `together` have a bucket for themselves.
    """
    group_of = {each: number for number, group in enumerate(together) for each in group}
    buckets: dict[Any, Bucket] = {}
    done: list[Bucket] = []
    sizes: dict[Any, int] = {}
    for name, each in reversed(list(parameters)):
        kind = (group_of.get(each), each.dtype, each.device)
        if kind not in buckets:
            buckets[kind] = Bucket([], [])
            sizes[kind] = 0
            done.append(buckets[kind])
        buckets[kind].parameters.append(each)
        buckets[kind].names.append(name)
        sizes[kind] += each.numel() * each.element_size()
        if kind[0] is None and sizes[kind] >= _FULL:
            del buckets[kind]
    return done


class Combiner:
    """Combines the gradients of parameters, of which `groups` are those of an optimizer. Not thread-safe.

    `names` are those of the parameters. Gradients of `passes` backward passes are added up before they
    travel. Parameters that are `together` travel in one bucket.
    """

    def __init__(
        self,
        groups: list[dict[str, Any]],
        names: dict[torch.nn.Parameter, str],
        how: Settings,
        passes: int,
        together: Sequence[Sequence[torch.nn.Parameter]],
    ) -> None:
        self.groups = groups
        self.names = names
        self.passes = passes
        self._how = how
        self._buckets: list[Bucket] = []
        self._left: dict[torch.nn.Parameter, int] = {}
        """After how many more backward passes a gradient is complete, of parameters in buckets."""
        self._extend(together)

    def _extend(self, together: Sequence[Sequence[torch.nn.Parameter]] = ()) -> None:
        """Put the parameters that have gradients, and are in no bucket, into buckets."""
        if not self._how.process_set.included() or size() == 1:
            return
        fresh = []
        for number, group in enumerate(self.groups):
            for place, each in enumerate(group["params"]):
                if each.requires_grad and each not in self._left:
                    fresh.append((self.names.setdefault(each, f"noname.{number}.{place}"), each))
        for bucket in cut(fresh, together):
            self._buckets.append(bucket)
            for each in bucket.parameters:
                self._left[each] = self.passes
                setattr(each, _OWNER, weakref.ref(self))
                each.register_post_accumulate_grad_hook(partial(_count, weakref.ref(self), bucket))

    def count(self, bucket: Bucket, parameter: torch.nn.Parameter) -> None:
        """Count a backward pass, and start the buckets that are complete.

        Raises WrongOrder if there was one too many.
        """
        name = self.names[parameter]
        if self._left[parameter] == 0:
            raise WrongOrder(
                f"{name}: more backward passes than backward_passes_per_step, which is {self.passes}, before "
                "step() or synchronize(): give DistributedOptimizer as many as there are"
            )
        gradient = parameter.grad
        if gradient is not None and gradient.requires_grad:
            raise WrongOrder(
                f"{name}: its gradient has a gradient itself: call backward() without create_graph"
            )
        self._left[parameter] -= 1
        if self._left[parameter] == 0:
            bucket.ready.add(parameter)
            for each in self._buckets:
                if not each.started:
                    if len(each.ready) < len(each.parameters):
                        return
                    each.start(self._how)

    @property
    def begun(self) -> bool:
        """Whether there was a backward pass since gradients were combined."""
        return any(left != self.passes for left in self._left.values())

    def combine(self) -> None:
        """Wait until the gradients of all processes are combined, in place, those of all passes so far.

        Raises UsageError if another combiner has taken parameters, and what operations raise.
        """
        self._extend()  # by parameters that were added or unfrozen
        for parameter in self._left:
            if getattr(parameter, _OWNER)() is not self:
                raise UsageError(
                    f"{self.names[parameter]} is in a newer DistributedOptimizer, too: use that one only"
                )
        try:
            for each in self._buckets:
                if not each.started:
                    each.start(self._how)
        finally:
            self.end()

    def end(self) -> None:
        """Wait for what has started, and count backward passes anew. Raises what operations raise."""
        for parameter in self._left:
            self._left[parameter] = self.passes
        problem: Exception | None = None
        for each in self._buckets:
            try:
                each.finish()
            except Exception as error:
                problem = problem or error
        if problem is not None:
            raise problem


def _count(combiner: weakref.ref[Combiner], bucket: Bucket, parameter: torch.nn.Parameter) -> None:
    """Tell the combiner of a gradient, if it is there still and nobody else has the parameter."""
    found = combiner()
    if found is not None and getattr(parameter, _OWNER)() is found:
        found.count(bucket, parameter)
