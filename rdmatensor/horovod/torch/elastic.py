# SPDX-License-Identifier: Apache-2.0
"""Go on after processes were lost: horovod.torch.elastic."""

from __future__ import annotations

import copy
import math
import random
from collections.abc import Callable, Iterator, Mapping, Sized
from contextlib import suppress
from typing import Any

import torch

from ..elastic import ObjectState, State, run_fn
from ..reductions import HorovodInternalError
from .functions import broadcast_object, broadcast_optimizer_state, broadcast_parameters
from .process import rank, rejoin, size

__all__ = ["ElasticSampler", "ObjectState", "State", "TorchState", "run"]


def run(func: Callable[..., Any]) -> Callable[..., Any]:
    """Decorate a function that trains, whose first argument is its State, so that it outlives processes.

    When another process is lost, the state goes back to its last commit(), and the function is called again
    once the launcher has started that process anew: `rdmatensor launch --restarts`. Processes that were not
    lost come first among the ranks, so that rank 0 has the state. Raises HorovodInternalError if the others
    do not come.
    """
    return run_fn(func, rejoin)


class ElasticSampler(torch.utils.data.Sampler):  # type: ignore[misc]
    """Divide the indices of a dataset among the processes, anew after each reset, without those processed.

    Call record_batch() after each batch, and set_epoch() at the end of each epoch. `seed` is the same at all
    processes. Not thread-safe.
    """

    def __init__(self, dataset: Sized, shuffle: bool = True, seed: int = 0) -> None:
        self.dataset = dataset
        self.shuffle = shuffle
        self.seed = seed
        self.epoch = 0
        self.processed_num = 0
        self.reset()

    def set_epoch(self, epoch: int) -> None:
        """Begin another epoch: another order, and nothing is processed."""
        self.epoch = epoch
        self.processed_num = 0
        self.reset()

    def record_batch(self, batch_idx: int, batch_size: int) -> None:
        """Count a batch, of `batch_size` indices at each process, as processed. `batch_idx` is not used."""
        self.processed_num += batch_size * self.num_replicas

    def state_dict(self) -> dict[str, int]:
        """Return the epoch, and how many indices of it all processes have processed."""
        return {"epoch": self.epoch, "processed_num": self.processed_num}

    def load_state_dict(self, state_dict: Mapping[str, int]) -> None:
        """Take what state_dict() has returned."""
        self.epoch, self.processed_num = state_dict["epoch"], state_dict["processed_num"]
        self.reset()

    def reset(self) -> None:
        """Divide what is not processed among the processes that there are now."""
        self.num_replicas, self.rank = size(), rank()
        indices = list(range(len(self.dataset)))
        if self.shuffle:
            random.Random(self.seed + self.epoch).shuffle(indices)
        self.remaining_indices = indices[self.processed_num :]
        self.num_samples = math.ceil(len(self.remaining_indices) / self.num_replicas)
        self.total_size = self.num_samples * self.num_replicas

    def __iter__(self) -> Iterator[int]:
        """Return this process's part. All parts are equally long: some of the first indices come twice."""
        indices = self.remaining_indices
        indices = indices + indices[: self.total_size - len(indices)]
        return iter(indices[self.rank : self.total_size : self.num_replicas])

    def __len__(self) -> int:
        return self.num_samples


class _Kept:
    """A value with a state_dict(), and the one that was kept last."""

    def __init__(self, value: Any) -> None:
        self.value = value
        self.save()

    def save(self) -> None:
        self._saved = copy.deepcopy(self.value.state_dict())

    def restore(self) -> None:
        self.value.load_state_dict(copy.deepcopy(self._saved))

    def sync(self) -> None:
        self.value.load_state_dict(broadcast_object(self.value.state_dict()))
        self.save()


class _Model(_Kept):
    def sync(self) -> None:
        broadcast_parameters(self.value.state_dict(), root_rank=0)
        self.save()


class _Optimizer(_Kept):
    def restore(self) -> None:
        combiner = getattr(self.value, "_horovod", None)
        if combiner is not None:
            with suppress(HorovodInternalError):  # of gradients that were on their way
                combiner.end()
        super().restore()

    def sync(self) -> None:
        broadcast_optimizer_state(self.value, root_rank=0)
        self.save()


_KINDS: tuple[tuple[type, type[_Kept]], ...] = (
    (torch.nn.Module, _Model),
    (torch.optim.Optimizer, _Optimizer),
    (ElasticSampler, _Kept),
)


class TorchState(ObjectState):
    """Models, optimizers, samplers and other objects, each an attribute by the name of its argument."""

    def __init__(self, model: Any = None, optimizer: Any = None, **kwargs: Any) -> None:
        self._handlers: dict[str, _Kept] = {}
        others = {}
        for name, value in {"model": model, "optimizer": optimizer, **kwargs}.items():
            kind = next((kept for of, kept in _KINDS if isinstance(value, of)), None)
            if kind is None:
                others[name] = value
            else:
                self._handlers[name] = kind(value)
                vars(self)[name] = value
        super().__init__(broadcast_object, rank, **others)

    def save(self) -> None:
        """Keep the present values in memory, on the devices where they are."""
        for each in self._handlers.values():
            each.save()
        super().save()

    def restore(self) -> None:
        """Go back to the values that were kept last."""
        for each in self._handlers.values():
            each.restore()
        super().restore()

    def sync(self) -> None:
        """Take the values of rank 0, and keep them. Raises HorovodInternalError if a process is lost."""
        for each in self._handlers.values():
            each.sync()
        super().sync()

    def reset(self) -> None:
        """Let samplers divide what is left among the processes that there are now."""
        for each in self._handlers.values():
            if isinstance(each.value, ElasticSampler):
                each.value.reset()

    def __setattr__(self, name: str, value: Any) -> None:
        """Set an attribute. Another model, optimizer or sampler is kept in the place of the one before."""
        if name in self.__dict__.get("_handlers", ()):
            self._handlers[name] = type(self._handlers[name])(value)
        super().__setattr__(name, value)
