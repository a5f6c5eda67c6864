# SPDX-License-Identifier: Apache-2.0
"""The synchronizers of rdmatensor.train that exchange parameters every so often, for torch's models."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from ..errors import RdmaError, UsageError
from ..train.backend.torch.vector import Vector
from ..train.run.membership import Membership
from ..train.sync.base import Gradients, Parameters
from ..train.sync.periods import Quality
from .process_group import ProcessGroup
from .work import failure

__all__ = ["Synchronization", "synchronize"]


class _Members(Membership):
    """The members of a process group, in a group of the synchronizer's own over the same connections."""

    def __init__(self, pg: ProcessGroup) -> None:
        self.rank, self.size, self.timeout = pg.rank(), pg.size(), pg._calls.limit
        self.device = pg._session.device
        self.group = pg._split("synchronizer", pg._ranks, self.timeout)
        self.closing = []
        self.name = (
            self.group.name
        )  # of its stores: unique in this process, and the same at all members


class Synchronization:
    """A model that a synchronizer keeps near those of the other processes. synchronize() makes it.

    Not thread-safe.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        synchronizer: Parameters,
        process_group: Any = None,
        state: Mapping[str, Any] | None = None,
    ) -> None:
        if not isinstance(synchronizer, Parameters) or isinstance(synchronizer, Gradients):
            raise UsageError(
                f"{type(synchronizer).__name__} changes gradients, as DistributedDataParallel does: "
                "give a synchronizer that exchanges parameters, such as LocalSGD, DiLoCo, EASGD or PullGossip"
            )
        pg = _ours(process_group or dist.group.WORLD)
        self._optimizer = optimizer
        self._synchronizer = synchronizer
        self._parameters = [each for each in model.parameters() if each.requires_grad]
        for each in self._parameters:
            if not each.is_cpu or hasattr(each, "to_local"):
                raise UsageError(
                    "synchronize() takes models with whole parameters on the CPU, and this one has a "
                    f"{type(each).__name__} on {each.device}"
                )
        self.steps = 0
        """How often step() was called."""
        self._ended = False
        if state is not None:
            self._resume(state, pg.size())
        self._members = _Members(pg)
        assert self._members.group is not None
        try:
            self._agree(state)
        except BaseException:
            self.close()
            raise
        if state is None:  # processes begin with one model
            for tensor in [*model.parameters(), *model.buffers()]:
                pg.broadcast([tensor.detach()], root=0).wait()
        self._vector = Vector(self._members.group, self._parameters)
        synchronizer.shapes = [tuple(each.shape) for each in self._parameters]
        try:
            first = synchronizer.begin(self._members, self._vector.take())
        except RdmaError as error:
            self.close()
            raise failure("beginning to synchronize", error) from error
        self._next = first if state is None else int(state["next"])

    def state_dict(self) -> dict[str, Any]:
        """Return what a checkpoint keeps of this process's synchronizer: tensors, numbers and texts, copied.

        Call it between steps, and give it to synchronize() in the program that goes on. Each process has its
        own, as it has its own model between exchanges.
        """
        kept: dict[str, Any] = {}
        for name, value in self._synchronizer.state().items():
            array = np.array(value)
            kept[name] = str(array) if array.dtype.kind == "U" else torch.from_numpy(array)
        return {
            "kind": type(self._synchronizer).__name__,
            "size": self._members.size,
            "steps": self.steps,
            "next": self._next,
            "state": kept,
        }

    def _resume(self, state: Mapping[str, Any], size: int) -> None:
        """Take what state_dict() gave. Raises UsageError if it is of another synchronizer."""
        own = type(self._synchronizer).__name__, size
        kept = state.get("kind"), state.get("size")
        if kept != own:
            raise UsageError(
                f"the state is of {kept[0]} in {kept[1]} processes, and this is {own[0]} in {own[1]}: "
                "go on with the same, or without a state"
            )
        self.steps = int(state["steps"])
        self._synchronizer.restore({name: np.array(each) for name, each in state["state"].items()})

    def _agree(self, state: Mapping[str, Any] | None) -> None:
        """Raise UsageError, in all processes, if some go on with a state and others begin, or elsewhere."""
        members = self._members
        assert members.group is not None
        own = np.array([-1, 0] if state is None else [self.steps, int(state["next"])], np.int64)
        try:
            every = members.group.all_gather(
                own[None], timeout=members.timeout, detail="steps of states"
            )
        except RdmaError as error:
            raise failure("beginning to synchronize", error) from error
        begin = [rank for rank, each in enumerate(every) if each[0] < 0]
        if 0 < len(begin) < members.size:
            raise UsageError(
                f"rank {begin[0]} has no state, and others have: give all theirs, or none"
            )
        differ = [rank for rank, each in enumerate(every) if tuple(each) != tuple(every[0])]
        if self._synchronizer.waits and differ:
            raise UsageError(
                f"the state of rank {differ[0]} is of step {every[differ[0]][0]}, and that of rank 0 of step "
                f"{every[0][0]}: give all processes states of one step"
            )

    def step(self, loss: Any = None) -> None:
        """Count a step, and exchange parameters if the synchronizer wants it. Call it after optimizer.step().

        `loss`, of this process's batch, is what the period `Quality` needs. Raises DistBackendError, which
        names the member, if one is gone or does something else; the model stays as it is. Synchronizers that
        wait for nobody go on without a member that is gone.
        """
        if self._ended:
            raise UsageError("the synchronization has been finished or closed: make a new one")
        if loss is not None:
            self._synchronizer.observe(float(loss))
        elif isinstance(getattr(self._synchronizer, "period", None), Quality):
            raise UsageError("the period Quality follows the loss: call step(loss)")
        self.steps += 1
        if self.steps < self._next:
            return
        x, rate = self._vector.take(), float(self._optimizer.param_groups[0]["lr"])
        try:
            self._next = self._synchronizer.exchange(x, self.steps, rate)
        except RdmaError as error:
            raise failure(f"synchronizing after step {self.steps}", error) from error
        self._vector.give()

    def finish(self) -> None:
        """Bring the models together when training ends, wait for who still needs this process, and close.

        With synchronizers that wait, all processes call it after equally many steps, and have one model
        afterwards. The others leave each process its own. Raises what step() raises.
        """
        if self._ended:
            return
        try:
            self._synchronizer.conclude(self._vector.take(), self.steps)
            self._vector.give()
            self._synchronizer.finish()
        except RdmaError as error:
            raise failure(f"finishing after step {self.steps}", error) from error
        finally:
            self.close()

    def close(self) -> None:
        """End it without the others: those that wait for this process fail. It may be called again."""
        if self._ended:
            return
        self._ended = True
        self._synchronizer.close()
        if self._members.group is not None:
            self._members.group.close()


def synchronize(
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    synchronizer: Parameters,
    process_group: dist.ProcessGroup | None = None,
    state: Mapping[str, Any] | None = None,
) -> Synchronization:
    """Let a synchronizer of rdmatensor.train exchange a model's parameters between steps.

    All processes call it, and begin with rank 0's parameters and buffers. Then each trains by itself. Call
    step() of what this returns after each `optimizer.step()`, and finish() at the end. `synchronizer` is one
    that exchanges parameters, such as rdmatensor.train.sync.DiLoCo(50); it serves one model. It gets the
    learning rate of the optimizer's first group. Buffers, and the state of the optimizer, stay in each
    process.

    With `state`, from state_dict(), this process goes on with the model that it has, which must be the one of
    that step. All processes give their states then.

    Raises UsageError if the synchronizer changes gradients, parameters are not whole on the CPU, or states do
    not fit together; DistBackendError if a member is gone.
    """
    return Synchronization(model, optimizer, synchronizer, process_group, state)


def _ours(group: Any) -> ProcessGroup:
    """Return the process group as ours. Raises UsageError if it is of another backend."""
    backend = None if group is None else group._get_backend(torch.device("cpu"))
    if not isinstance(backend, ProcessGroup):
        raise UsageError(
            'synchronize() needs a process group of the backend rdmatensor: init_process_group("rdmatensor")'
        )
    return backend
