# SPDX-License-Identifier: Apache-2.0
"""Combine the gradients of all processes before an optimizer applies them."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

import torch

from ...errors import UsageError
from ..absent import refuse_adasum
from ..reductions import Average, ReduceOp, Sum
from .buckets import Combiner, Settings, WrongOrder
from .compression import Compression
from .process import ProcessSet, global_process_set


class _Distributed:
    """The class in front of that of an optimizer. Not thread-safe."""

    _horovod: Combiner
    _synchronized: bool
    """Whether gradients are combined since the last step."""
    _skips: bool

    @property
    def _parameter_names(self) -> dict[torch.nn.Parameter, str]:
        return self._horovod.names

    def set_backward_passes_per_step(self, passes: int) -> None:
        """Let gradients of so many backward passes be added up before they are combined."""
        self._horovod.passes = _positive(passes)
        self._horovod.end()

    def synchronize(self) -> None:
        """Wait until the gradients of all processes are combined, in place, those of all passes so far.

        Call it in all processes, for example before gradients are clipped, and then step() within
        skip_synchronize(). Raises HorovodInternalError if a process is lost, and Disagreement if their
        parameters differ.
        """
        self._horovod.combine()
        self._synchronized = True

    @contextmanager
    def skip_synchronize(self) -> Iterator[None]:
        """Let step() within the block apply the gradients as they are: synchronize() was called before."""
        self._skips = True
        try:
            yield
        finally:
            self._skips = False

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Combine the gradients of all processes, unless skip_synchronize() is around it, and apply them.

        Gradients that `closure` computes are combined each time that it is called. Raises what synchronize
        raises.
        """
        if self._synchronized and not self._skips:
            warnings.warn(
                "optimizer.step() called without optimizer.skip_synchronize() after "
                "optimizer.synchronize(): gradients are combined twice. Call it within "
                "optimizer.skip_synchronize()",
                stacklevel=2,
            )
        if closure is not None and not self._skips:
            closure = self._combining(closure)
        elif not self._skips:
            self.synchronize()
        self._synchronized = False
        return super().step(closure)  # type: ignore[misc]

    # torch puts what counts and profiles steps around methods that do not say that they have it.
    step.hooked = True  # type: ignore[attr-defined]

    def _combining(self, closure: Callable[[], Any]) -> Callable[[], Any]:
        def combined() -> Any:
            loss = closure()
            self._horovod.combine()
            return loss

        return combined

    def zero_grad(self, *arguments: Any, **named: Any) -> None:
        """Set gradients to None, or zero. Raises WrongOrder between backward() and step()."""
        if self._horovod.begun:
            raise WrongOrder(
                "zero_grad() between backward() and step() or synchronize(): gradients are on their way, and "
                "would be lost. Call step() or synchronize() first"
            )
        super().zero_grad(*arguments, **named)  # type: ignore[misc]

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load the state of the optimizer, once gradients that are on their way have come."""
        self._horovod.end()
        self._synchronized = False
        super().load_state_dict(state_dict)  # type: ignore[misc]
        # torch makes new groups of parameters.
        self._horovod.groups = self.param_groups  # type: ignore[attr-defined]


def _positive(passes: int) -> int:
    if int(passes) < 1:
        raise UsageError(f"backward_passes_per_step is {passes}: give 1 or more")
    return int(passes)


def _names(
    optimizer: torch.optim.Optimizer, named_parameters: Iterable[Any] | None
) -> dict[torch.nn.Parameter, str]:
    """Return the names of parameters. Raises UsageError if they are not unique, or one has none."""
    every = [each for group in optimizer.param_groups for each in group["params"]]
    if named_parameters is None:
        return {
            each: f"noname.{number}.{place}"
            for number, group in enumerate(optimizer.param_groups)
            for place, each in enumerate(group["params"])
        }
    pairs = list(named_parameters)
    if not all(isinstance(each, tuple) and len(each) == 2 for each in pairs):
        raise UsageError(
            "named_parameters: give pairs of names and parameters: model.named_parameters()"
        )
    twice = [name for name, count in Counter(name for name, _ in pairs).items() if count > 1]
    if twice:
        raise UsageError(
            f"named_parameters: several have the name {', '.join(twice)}: give other names"
        )
    names = {parameter: name for name, parameter in pairs}
    missing = [list(each.shape) for each in every if each not in names]
    if missing:
        raise UsageError(
            f"named_parameters: {len(missing)} parameters of the optimizer have no name, of the shapes "
            f"{missing}: give those of the whole model"
        )
    return names


def _together(groups: Any, optimizer: torch.optim.Optimizer) -> list[list[torch.nn.Parameter]]:
    """Return the parameters that shall travel together. Raises UsageError if one is in two groups."""
    if groups is None:
        return []
    if isinstance(groups, int) and groups >= 0:
        every = [each for group in optimizer.param_groups for each in group["params"]]
        ends = [len(every) * i // groups for i in range(groups + 1)] if groups else []
        return [every[a:b] for a, b in pairwise(ends)]
    if not isinstance(groups, (list, tuple)):
        raise UsageError(f"groups is {groups!r}: give a number of groups, or lists of parameters")
    found = [list(each) for each in groups]
    flat = [parameter for group in found for parameter in group]
    if not all(isinstance(each, torch.Tensor) for each in flat):
        raise UsageError("groups: give a number of groups, or lists of parameters")
    if len({id(each) for each in flat}) < len(flat):
        raise UsageError("groups: a parameter is there twice: it travels once")
    return found


def DistributedOptimizer(  # noqa: N802  the name is Horovod's
    optimizer: torch.optim.Optimizer,
    named_parameters: Iterable[Any] | None = None,
    compression: Any = Compression.none,
    backward_passes_per_step: int = 1,
    op: int = Average,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: Any = None,
    sparse_as_dense: bool = False,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Return an optimizer of the same class that applies the gradients of all processes, combined by `op`.

    It shares parameters and state with the one that is given, which is not used any more. Gradients travel in
    buckets during the backward pass, those of `groups` (parameters in lists, or how many lists) in buckets
    of their own. With `backward_passes_per_step`, the sum of so many gradients is combined. With
    `gradient_predivide_factor` f, gradients are divided by f before they are added up, and by size / f
    afterwards. Sparse gradients are gathered, or with `sparse_as_dense` added up as dense ones.

    Raises UsageError for names that are not unique or missing and for wrong options, and Unsupported for
    Adasum.
    """
    how = ReduceOp(op)
    refuse_adasum(how)
    if how not in (Average, Sum):
        raise UsageError(f"gradients by {how.name}: give Average or Sum")
    if gradient_predivide_factor != 1.0 and how != Average:
        raise UsageError("gradient_predivide_factor needs op=Average")
    if isinstance(optimizer, _Distributed):
        raise UsageError("the optimizer is a DistributedOptimizer already: give it to none again")
    if groups is None:
        groups = num_groups or None
    passes = _positive(backward_passes_per_step)
    names = _names(optimizer, named_parameters)
    together = _together(groups, optimizer)
    base: Any = type(optimizer)
    made: Any = object.__new__(type(base.__name__, (_Distributed, base), {}))
    # A scheduler that has the optimizer already has put a step() of its own there, which would skip ours.
    kept = {
        key: value for key, value in vars(optimizer).items() if key not in ("step", "zero_grad")
    }
    vars(made).update(kept)
    settings = Settings(how, compression, gradient_predivide_factor, sparse_as_dense, process_set)
    made._horovod = Combiner(made.param_groups, names, settings, passes, together)
    made._synchronized = made._skips = False
    return made
