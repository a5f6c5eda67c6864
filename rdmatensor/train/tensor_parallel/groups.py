# SPDX-License-Identifier: Apache-2.0
"""Group the processes over which layers are cut: who has which strip, and who has the same one."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import tensorflow as tf

from ...errors import Cancelled, ConnectionFailure, DeadlineExceeded, UsageError
from ..backend import mixin
from ..backend.optimizers import inside
from ..backend.tensorflow import operations
from ..backend.tensorflow.exchange import Exchange
from ..backend.tensorflow.optimizer import Distributed
from ..backend.tensorflow.parts import Division, part_of
from ..run.session import Session
from ..run.subgroup import Subgroup, gather_texts
from ..sync.all_reduce import AllReduce
from ..sync.base import Gradients
from ..sync.compression import Compression
from ..sync.local_sgd import LocalSGD
from .optimizer import WithStrips

# How many models this process has split: names of groups are unique, and the same in all processes.
_made = itertools.count()
# A process raises one of these when others are lost. Python functions that a graph calls raise UnknownError.
_LOSSES = (
    *(tf.errors.AbortedError, tf.errors.CancelledError, tf.errors.UnavailableError),
    *(tf.errors.DeadlineExceededError, tf.errors.UnknownError),
    *(ConnectionFailure, DeadlineExceeded, Cancelled),
)


class Groups(Division):
    """The groups of `size` successive ranks of a run. All processes make it at the same place."""

    def __init__(self, run: Session, size: int, period: int) -> None:
        assert run.group is not None and run.device is not None
        self.run, self.size, self.period = run, size, period
        self.number, self.place = divmod(run.rank, size)
        """Which group this process is in, and which strip it has."""
        name, addresses = (
            f"rdmatensor.split.{next(_made)}",
            gather_texts(run, run.device.address),
        )

        def part(ranks: Sequence[int], what: str) -> Subgroup:
            return Subgroup(run, ranks, addresses[ranks[0]], f"{name}.{what}.{ranks[0]}")

        first = self.number * size
        # A part is as good as a run here.
        self.inside: Any = run
        if size < run.size:
            self.inside = part(range(first, first + size), "group")
        self.across: Any = part(range(self.place, run.size, size), "strip")
        """The processes of all groups that have the same strip."""

    @contextmanager
    def ending_together(self) -> Iterator[None]:
        """End this process's groups if a member is lost within the block.

        Processes of other groups share no group with that member. They wait for this process, which may stay
        alive, and shall learn at once that it trains no more.
        """
        try:
            yield
        except _LOSSES as error:
            for part in (self.inside, self.across):
                if part is not self.run and part.group is not None:
                    part.group._calls.abort(
                        f"rank {self.run.rank} has stopped training: {_first_line(error)}"
                    )
            raise

    @operations.no_autograph
    def gradients(
        self,
        run: Session,
        sync: Gradients,
        gradients: Sequence[Any],
        variables: Sequence[Any],
        name: str,
        names: Sequence[str],
    ) -> list[Any]:
        """Average gradients: of whole variables over all processes, of strips over all groups.

        With a period, each group averages for itself.
        """
        results = list(gradients)
        strips = [part_of(each) is not None for each in variables]
        whole = [i for i, cut in enumerate(strips) if not cut]
        apart = self.period > 1
        among = self.inside if apart else run
        sync.names = [names[i] for i in whole]
        means = sync.gradients(among, [results[i] for i in whole], name)
        for i, value in zip(whole, means, strict=True):
            results[i] = value
        cut = [i for i, cut in enumerate(strips) if cut and results[i] is not None]
        # A strip has the gradients of all examples of its group; the loss is the mean over its processes.
        scaled: Sequence[Any] = [results[i] / self.size for i in cut]
        if not apart:
            plain = sync if isinstance(sync, AllReduce) else AllReduce()
            plain.names = [names[i] for i in cut]
            scaled = plain.gradients(self.across, scaled, f"strips of {name}")
        for i, value in zip(cut, scaled, strict=True):
            results[i] = value
        return results

    @operations.no_autograph
    def finite(self, gradients: list[Any], name: str) -> list[Any]:
        """Put a NaN into every process's gradients if one of them has an infinity or a NaN."""
        results = list(gradients)
        present = [i for i, each in enumerate(results) if each is not None]
        finite = [
            tf.reduce_all(tf.math.is_finite(getattr(results[i], "values", results[i])))
            for i in present
        ]
        mine = tf.cast(tf.reduce_all(finite), tf.float32)
        everywhere = operations.all_reduce(
            self.run, mine[tf.newaxis], "min", f"whether {name} is finite"
        )
        dense = [i for i in present if isinstance(results[i], tf.Tensor)]
        least = min(dense, key=lambda i: int(np.prod(results[i].shape)))
        results[least] = tf.where(
            everywhere[0] > 0, results[least], tf.constant(np.nan, results[least].dtype)
        )
        return results

    @operations.no_autograph
    def squared_norms(self, gradients: Sequence[Any], strips: Sequence[bool], name: str) -> Any:
        """Return the squared norm of each gradient, of strips that of the whole, as a vector of float32."""
        norms = tf.stack([_squared_norm(each) for each in gradients])
        if self.size == 1 or not any(strips):
            return norms
        mask = tf.constant(list(strips))
        summed = operations.all_reduce(
            self.inside, tf.where(mask, norms, tf.zeros_like(norms)), "sum", f"norms of {name}"
        )
        return tf.where(mask, summed, norms)

    def senders(self, run: Session, root: int) -> tuple[Any, int]:
        """Return the processes that have this one's strip, and the one of them in `root`'s group."""
        return self.across, root // self.size

    @operations.no_autograph
    def prepare(self, optimizer: Any) -> None:
        """Let an optimizer treat strips as parts, and groups train apart if they shall."""
        if optimizer is None:
            if self.period > 1:
                raise UsageError("split(period=...) needs distribute(), which counts the steps")
            return
        sync = optimizer._rdmatensor_sync
        if not isinstance(sync, (AllReduce, Compression)):
            raise UsageError(
                f"{type(sync).__name__} and split(): processes that share a layer need each other in every "
                "step: use AllReduce; split(period=...) lets groups train apart"
            )
        if self.period > 1 and isinstance(sync, Compression):
            raise UsageError(
                f"split(period=...) with {type(sync).__name__}: use AllReduce, whose compression names a type"
            )
        if isinstance(optimizer, WithStrips):
            return
        for each in inside(optimizer):
            mixin.add(each, WithStrips)
        mixin.remove(optimizer)  # its gradients are averaged before they are clipped
        mixin.add(optimizer, WithStrips)
        mixin.add(optimizer, Distributed)
        if self.period > 1 and self.across.size > 1:
            exchange = Exchange(self.across, LocalSGD(self.period))
            object.__setattr__(optimizer, "_rdmatensor_kept", exchange)


def _first_line(error: BaseException) -> str:
    """Return the first line of an error about a member. TensorFlow adds where it was raised."""
    lines = str(error).splitlines() or [""]
    return next((line for line in lines if "member" in line), lines[0]).strip()


def _squared_norm(gradient: Any) -> Any:
    if gradient is None:
        return tf.zeros([])
    value = tf.cast(tf.convert_to_tensor(gradient), tf.float32)
    return tf.reduce_sum(value * value)
