# SPDX-License-Identifier: Apache-2.0
"""What the processes have in common while Keras's fit runs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any
from zlib import crc32

import keras
import numpy as np
import tensorflow as tf

from ..errors import UsageError
from . import operations
from .backup import Backup, Kept
from .cut.leading import only_on_rank_0
from .cut.strips import groups_of, strip_of
from .gradients import buckets_of
from .links import Links
from .optimizer import exchange_of, move_outwards, sync_of
from .process import Run, current
from .summary import Summary
from .sync.base import Synchronizer
from .tables.placement import is_owned

# Smaller variables are broadcast together, up to so many bytes.
_AT_ONCE = 8 << 20


def callbacks(
    *, backup: str | Path | None = None, warmup_epochs: float = 0, watch_links: bool = False
) -> list[Any]:
    """The callbacks that fit() needs in every process. Put them before your own.

    They copy rank 0's model and optimizer to all processes before the first step; average the metrics of
    each epoch, so that callbacks that stop training or change the rate decide alike; average what layers
    such as BatchNormalization have gathered; and leave the progress bar to rank 0, which prints a table of
    what each process did at the end.

    `backup` is a folder in which rank 0 keeps the last epoch; fit() goes on after it when the program
    starts again. `warmup_epochs` raises the learning rate during the first epochs, from its value divided
    by the number of processes. With `watch_links`, the trees of init(topology=...) are timed after each
    epoch, for about 0.1 s, and packed anew if a link has slowed down (rdmatensor.topology.Watch). Raises
    UsageError if there are none; fit() does if the synchronizer waits for nobody.
    """
    run = current()
    found: list[Any] = [_Together(run, Path(backup) if backup is not None else None)]
    if warmup_epochs > 0:
        found.append(_Warmup(run, warmup_epochs))
    if watch_links:
        found.append(Links(run))
    if run.size > 1 and not run.returns:
        found.append(Summary(run))
    return found


def on_rank_0(callback: Any) -> Any:
    """The callback in rank 0, and one that does nothing elsewhere: for checkpoints, logs, and messages.

    Call it in all processes, with the same kind of callback. What it saves of a split model is the whole.
    """
    run = current()
    run.saves |= isinstance(callback, keras.callbacks.ModelCheckpoint)
    return callback if run.size == 1 else only_on_rank_0(callback, run.rank)


def broadcast_variables(run: Run, variables: Sequence[Any], root: int, name: str) -> None:
    """Sets variables to their values in `root`. Their order, types and shapes are the same everywhere.

    Strips of a split model come from the process of root's group that has the same one.
    """
    if run.size == 1:
        return
    groups = groups_of(variables)
    if groups is not None:
        strips = [each for each in variables if strip_of(each) is not None]
        variables = [each for each in variables if strip_of(each) is None]
        _broadcast(groups.across, strips, root // groups.size, f"strips of {name}")
    _broadcast(run, variables, root, name)


def _broadcast(run: Run, variables: Sequence[Any], root: int, name: str) -> None:
    if run.size == 1:
        return
    by_type: dict[Any, list[Any]] = {}
    for each in variables:
        if is_owned(each):
            continue  # rows of a table that no other process has
        dtype = tf.as_dtype(each.dtype)
        if dtype.is_bool or not (dtype.is_floating or dtype.is_integer):
            continue  # such as the state of a string table, which no process changes
        by_type.setdefault(dtype, []).append(each)
    # The root waits for nobody, and would not learn that another process has other variables.
    operations.barrier(run, f"{_described(by_type)} of {name}")
    for dtype, members in by_type.items():
        sizes = [
            (i, dtype, int(np.prod(each.shape)) * dtype.size) for i, each in enumerate(members)
        ]
        buckets = buckets_of(sizes, _AT_ONCE)
        for number, bucket in enumerate(buckets):
            started = operations.start(
                run.handle,
                "broadcast",
                [tf.convert_to_tensor(members[i]) for i in bucket],
                f"{name}, {dtype.name}, {number + 1} of {len(buckets)}",
                root=root,
            )
            for i, value in zip(bucket, started.finish(), strict=True):
                # A variable would keep the memory of the operation, where the next one can use it.
                members[i].assign(tf.raw_ops.DeepCopy(x=value))


def _described(by_type: dict[Any, list[Any]]) -> str:
    """What differs if types or shapes do."""
    shapes = [(kind.name, tuple(each.shape)) for kind in by_type for each in by_type[kind]]
    count = sum(int(np.prod(shape)) for _, shape in shapes)
    return f"{len(shapes)} variables with {count} elements ({crc32(repr(shapes).encode()):08x})"


class _Together(keras.callbacks.Callback):  # type: ignore[misc]
    def __init__(self, run: Run, backup: Path | None) -> None:
        super().__init__()
        self._run = run
        self._folder = backup
        self._backup: Backup | None = None
        self._in_fit = False
        self._sync = Synchronizer()
        self._shown = (0.0, 0)  # the loss that fit showed last, a mean over so many batches

    def set_params(self, params: Any) -> None:
        if params and self._run.rank != 0:
            params["verbose"] = 0  # the progress bar, which comes later, reads this very dict
        super().set_params(params)

    def on_train_begin(self, logs: Any = None) -> None:
        self._in_fit = True
        model = self.model
        optimizer = getattr(model, "optimizer", None)
        if optimizer is not None:
            move_outwards(optimizer)
            if model.built and not optimizer.built:
                optimizer.build(model.trainable_variables)
            self._sync = sync_of(optimizer)
        if self._folder is not None:
            self._backup = Backup(self._folder, self._run, model, self._sync)
        kept = self._backup.restore() if self._backup is not None else Kept(0, 0)
        if self._run.returns:
            kept = self._come_back()
        elif self._run.size > 1:
            if not model.built:
                raise UsageError(
                    "the model is not built: build it before fit(), so that all processes can start with "
                    "the same weights"
                )
            # Seeds differ on purpose: processes drop out different units.
            of_model = [each for each in model.variables if "seed_generator" not in each.path]
            of_optimizer = self._sync.shared(optimizer) if optimizer is not None else []
            broadcast_variables(self._run, [*of_model, *of_optimizer], 0, "the model at the start")
            numbers = operations.broadcast(
                self._run, np.array(kept, np.int64), 0, "the epoch at the start"
            )
            kept = Kept(*(int(each) for each in numbers))
            operations.trim()
        if kept.epoch:
            model._initial_epoch = kept.epoch
            if self._backup is not None and not self._run.returns:
                self._backup.restore_own(kept)

    def _come_back(self) -> Kept:
        """Takes the model of another process, and goes on in the epoch in which that is."""
        optimizer = self.model.optimizer
        exchange = exchange_of(optimizer)
        if exchange is None or not self.model.built:
            raise UsageError(
                "this process comes back to a training under way: build the model, and compile it with "
                "distribute(), before fit()"
            )
        step = exchange.come_back(self.model.trainable_variables)
        inner = getattr(optimizer, "inner_optimizer", optimizer)
        inner.iterations.assign(step)
        return Kept(step // (self.params.get("steps") or step + 1), 0)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if logs and "loss" in logs and type(self._sync).observe is not Synchronizer.observe:
            mean, count = self._shown if batch >= self._shown[1] else (0.0, 0)
            total = float(logs["loss"]) * (batch + 1) - mean * count
            self._sync.observe(total / (batch + 1 - count))
            self._shown = (float(logs["loss"]), batch + 1)

    def on_train_end(self, logs: Any = None) -> None:
        self._in_fit = False
        self._sync.leave(self.model)
        self._sync.release(self.model.optimizer)
        exchange = exchange_of(getattr(self.model, "optimizer", None))
        if exchange is not None and type(self._sync).conclude is not Synchronizer.conclude:
            exchange.conclude(
                self.model.trainable_variables, int(self.model.optimizer.iterations.numpy())
            )
        self._sync.finish()

    def on_test_begin(self, logs: Any = None) -> None:
        if self._in_fit:
            self._sync.settle(self.model)
            self._average_statistics()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self._sync.settle(self.model)
        self._average_statistics()
        if logs and self._run.size > 1 and self._sync.waits:
            names = sorted(logs)
            values = tf.constant([float(np.mean(logs[name])) for name in names], tf.float64)
            means = operations.all_reduce(
                self._run, values, "mean", f"metrics of an epoch ({', '.join(names)})"
            )
            logs.update(zip(names, (float(each) for each in means), strict=True))
        if self._backup is not None or self._run.saves:
            self._sync.gather(self.model.optimizer)
        if self._backup is not None:
            self._backup.save_own(epoch + 1)
            if self._run.size > 1 and self._sync.waits:
                operations.barrier(self._run, "a backup")  # all or none
            self._backup.save(epoch + 1)

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self._sync.release(self.model.optimizer)
        self._sync.resume(self.model)

    def _average_statistics(self) -> None:
        """Averages what layers gather while they train, such as means and variances of batches."""
        statistics = [
            each
            for each in self.model.non_trainable_variables
            if tf.as_dtype(each.dtype).is_floating
            and "seed_generator" not in each.path
            and not is_owned(each)
            and strip_of(each) is None
        ]
        if self._run.size == 1 or not statistics or not self._sync.waits:
            return
        by_type: dict[str, list[Any]] = {}
        for each in statistics:
            by_type.setdefault(each.dtype, []).append(each)
        for dtype, members in by_type.items():
            started = operations.start(
                self._run.handle,
                "all_reduce",
                [tf.convert_to_tensor(each) for each in members],
                f"statistics of layers, {dtype}",
                **operations.averaging(tf.as_dtype(dtype), self._run.size),
            )
            for variable, value in zip(members, started.finish(), strict=True):
                variable.assign(value)


class _Warmup(keras.callbacks.Callback):  # type: ignore[misc]
    def __init__(self, run: Run, epochs: float) -> None:
        super().__init__()
        self._size = run.size
        self._epochs = epochs
        self._epoch = 0
        self._rate = 0.0

    def on_train_begin(self, logs: Any = None) -> None:
        optimizer = self.model.optimizer
        inner = getattr(optimizer, "inner_optimizer", optimizer)
        if isinstance(inner._learning_rate, keras.optimizers.schedules.LearningRateSchedule):
            raise UsageError(
                "warmup_epochs and a learning rate schedule contradict each other: let the schedule warm up"
            )
        if not self.params.get("steps"):
            raise UsageError(
                "warmup_epochs needs steps_per_epoch, because the data has no known length"
            )
        self._rate = float(optimizer.learning_rate.numpy())

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self._epoch = epoch

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        done = (self._epoch + batch / self.params["steps"]) / self._epochs
        if done >= 1.0 + 1.0 / (self.params["steps"] * self._epochs):
            return
        share = min(done, 1.0)
        self.model.optimizer.learning_rate = self._rate * (share + (1 - share) / self._size)
