# SPDX-License-Identifier: Apache-2.0
"""Keep the models of all processes together while Keras's fit runs."""

from __future__ import annotations

import signal
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf

from ...errors import UsageError
from ..backend.distributed import hooks_of
from ..backend.interim import until_fit_ends
from ..backend.optimizers import iterations_of, sync_of
from ..backend.seeds import Streams
from ..backend.tensorflow import operations
from ..backend.tensorflow.agree import labels_of
from ..backend.tensorflow.equal import broadcast_variables, comparable, differing, take_rank_0s
from ..backend.tensorflow.optimizer import exchange_of, trace_anew
from ..backend.tensorflow.synchronized import check
from ..run.session import Session
from ..sync.base import Parameters, Synchronizer
from .alike import compare, follow_variables
from .backup import Backup, Kept, skip
from .callback_list import FirstAndLast, batches_of, files_of, refuse_common
from .optimizers import averages, distributed
from .pauses import Plan
from .uneven import Uneven
from .whole_swap import swap_whole


class SynchronizeCallback(FirstAndLast):
    """Callback that does what callbacks() promises of weights, statistics and backups.

    From the last step of an epoch to the first one of the next, all processes have one model: callbacks and
    validation see the one that fit would end with. Where processes train apart, that is the mean.
    """

    def __init__(
        self, run: Session, backup: Path | None, plan: Plan, uneven: Uneven | None = None
    ) -> None:
        super().__init__(
            run,
            plan,
            on_train_begin=lambda *_, **__: self._agree_on_start(),
            on_epoch_begin=lambda *_, **__: self._part(),
            on_epoch_end=lambda *_, **__: self._stop_together(),
            on_train_end=lambda *_, **__: self._end(),
        )
        self._uneven = uneven
        self._folder = backup
        self._backup: Backup | None = None
        self._in_fit = False
        self._streams: Streams | None = None
        self._settled = False
        self._compared = False
        self._epoch = 0
        # Of the batches of this epoch: how many to skip, and how many are done.
        self._skip = self._done = 0
        self._kept = 0, 0  # the epoch and batch of the last backup
        self._restored = False
        self._ended = False  # by a callback in one of the processes

    def set_model(self, model: Any) -> None:
        """Take the model, and its place among Keras's callbacks."""
        super().set_model(model)
        for each in self._list.callbacks if self._list is not None else ():
            swap_whole(each)

    def _syncs(self) -> Iterator[tuple[Any, Synchronizer]]:
        return ((each, sync_of(each)) for each in self._optimizers)

    def on_train_begin(self, logs: Any = None) -> None:
        """Give all processes one model, from a backup if there is one."""
        self._in_fit = True
        until_fit_ends(self.model, self._end_fit)
        self._settled = self._compared = self._restored = False
        self._ended = False
        model, run = self.model, self._run
        self._optimizers = distributed(model)
        if run.size > 1 and not model.built:
            _build(model)
        optimizer = getattr(model, "optimizer", None)
        # One that fit() does not use belongs to compile() without arguments.
        if optimizer is not None and optimizer not in self._optimizers and self._optimizers:
            optimizer = None
        if optimizer is not None and model.built and not optimizer.built:
            optimizer.build(model.trainable_variables)
        trace_anew(model, self._optimizers, run)
        if run.size > 1 and not run.returns:
            compare(run, model)
            check(model, self._waits)
        kept = Kept()
        if self._folder is not None:
            self._backup = Backup(self._folder, run, model, self._optimizers or [optimizer])
            self._backup.begin()
        if run.returns:
            kept = self._come_back()
        else:
            if self._backup is not None:
                kept = self._backup.restore()
            if run.size > 1:
                self._take_rank_0s(optimizer)
            self._look_at_callbacks()
        if kept.epoch or kept.batch:
            assert self._backup is not None or run.returns
            if self._backup is not None and not run.returns:
                self._backup.restore_own(kept)
                self._restored = True
                kept = self._backup.remaining(kept, self.params["epochs"])
            model._initial_epoch = kept.epoch
        if model.built and (self._run.size > 1 or self._backup is not None):
            self._streams = Streams(self._run, model.variables)
            if self._run.returns:
                self._streams.part_alone()
            else:
                self._streams.resume(self._backup.seeds if self._backup is not None else None)
        if self._backup is not None:
            self._backup.seeds = None  # those of the next epoch are others
        self._skip, self._kept = kept.batch, (0, 0)
        self._begin_pauses()
        if run.size > 1 and not getattr(model.train_step, "weighs", False):
            model.make_train_function(force=True)  # made before the optimizer was distributed

    def _end_fit(self) -> None:
        self._in_fit = False
        self.model._initial_epoch = None
        self._pauses.restore()

    def _take_rank_0s(self, optimizer: Any) -> None:
        state = list(self.model.variables)
        for each, sync in self._syncs():
            state += hooks_of(sync).shared(each)
        if optimizer is not None and optimizer not in self._optimizers:
            state += optimizer.variables
        broadcast_variables(self._run, state, 0, "the model at the start")
        follow_variables(self.model)
        operations.trim()

    def _come_back(self) -> Kept:
        """Take the model of another process, and go on in the epoch in which that is."""
        optimizer = self.model.optimizer
        exchange = exchange_of(optimizer)
        if exchange is None or not self.model.built:
            raise UsageError(
                "this process comes back to a training under way: build the model, and compile it with "
                "distribute(), before fit()"
            )
        step = exchange.come_back(self.model.trainable_variables)
        iterations_of(optimizer).assign(step)
        return Kept(epoch=step // (self.params.get("steps") or step + 1))

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Begin the epoch, behind the batches to skip."""
        self._epoch, self._done = epoch, self._skip
        for each, sync in self._syncs():
            hooks_of(sync).release(each)
        if self._list is None:
            self._part()

    def _part(self) -> None:
        """Let training go on after what looked at the common model."""
        self._settled = False
        for each, sync in self._syncs():
            exchange = exchange_of(each)
            if exchange is not None:
                exchange.part()
            hooks_of(sync).resume(self.model, each)
        if self._skip and self._backup is not None:
            skip(self.model, self._skip, self._uneven.saw if self._uneven else lambda batch: None)
            self._backup.restore_metrics()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Tell synchronizers of the loss, and do what all processes wish after this step."""
        if batch < self._skip:
            return
        if not self._compared and not self._optimizers:
            self._compare("after the first step")
        self._observe(batch, logs)
        batches, self._done = batch + 1 - self._done, batch + 1
        wish = self._pause(batches)
        if wish.keep and self._backup is not None:
            self._keep(self._epoch, self._done)
        if wish.leave:
            self._leave()
        self._ended = wish.end
        self._stop_after(wish)

    def _leave(self) -> None:
        # All together: a launcher ends the others when one has left, and they may still write.
        if self._pauses.end(self._waits):
            raise SystemExit(128 + signal.SIGTERM)

    def on_test_begin(self, logs: Any = None) -> None:
        """Bring the models together before validation."""
        if self._in_fit:
            self._settle()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        # By now, only something between two steps can have said so.
        """Bring the models together, and keep a backup."""
        partial = self.model.stop_training and self._done != self.params.get("steps")
        # Where processes train apart, they need not meet for nobody.
        if self._looked_at or not any(sync.apart for _, sync in self._syncs()):
            self._settle()
        else:
            self._average_statistics()
        if self._backup is not None and not partial:
            self._keep(epoch + 1, 0)
        elif self._backup is not None and not self._ended and self._kept != (epoch, self._done):
            self._keep(epoch, self._done, metrics=False)  # which validation has begun anew
        if self._run.saves and (partial or self._backup is None):
            self._gather()
        self._skip = 0

    def _gather(self) -> None:
        for each, sync in self._syncs():
            hooks_of(sync).gather(each)

    def _keep(self, epoch: int, batch: int, metrics: bool = True) -> None:
        """Keep a backup after so many batches of an epoch, in all processes or in none."""
        assert self._backup is not None
        for each, sync in self._syncs():
            hooks_of(sync).settle(each)
        self._gather()
        self._kept = epoch, batch
        self._backup.save_own(batch, metrics)
        if self._streams is not None and (self._waits or self._run.size == 1):
            self._backup.seeds = self._streams.gather().tolist()
        if self._waits:
            operations.barrier(self._run, "a backup")
        self._backup.save(epoch, batch)
        if batch:
            for each, sync in self._syncs():
                hooks_of(sync).release(each)
                hooks_of(sync).resume(self.model, each)

    def _look_at_callbacks(self) -> None:
        """Find out whether anything looks at models at the end of epochs, in any process.

        That is a callback that is not ours, or a backup. Raises UsageError if a callback cannot work.
        """
        restores = self._list is not None and any(
            isinstance(each, keras.callbacks.BackupAndRestore) for each in self._list.callbacks
        )
        looks = self._others_look() or self._backup is not None or self._run.saves
        steps = self.params.get("steps") or 0
        files = files_of(() if self._list is None else self._list.callbacks)
        found = tf.constant([looks, restores, steps, -steps, len(files)], tf.int64)
        if self._waits:
            found = operations.all_reduce(
                self._run, found, "max", "callbacks, and steps in an epoch"
            )
            refuse_common(self._run, files, int(found[4]))
        self._looked_at = bool(int(found[0]))
        if int(found[2]) != -int(found[3]) and int(found[3]):
            raise UsageError(
                f"processes have {-int(found[3])} to {int(found[2])} batches in an epoch, and {steps} here: "
                "rt.shard(data) gives all as many, and rt.callbacks(uneven=True) lets them have different "
                "numbers"
            )
        if int(found[1]) and self._run.size > 1:
            raise UsageError(
                "BackupAndRestore keeps and restores the model of one process: use "
                "rt.callbacks(backup=FOLDER)"
            )

    def _agree_on_start(self) -> None:
        """Give all processes what a callback has loaded in rank 0."""
        for each in self._optimizers:
            object.__setattr__(each, "compared", True)
        if not self._looked_at or not self._waits or self._restored:
            return
        state = self._state(self.model.variables)
        for each, sync in self._syncs():
            state += comparable(hooks_of(sync).shared(each))
        take_rank_0s(self._run, state, "the model when callbacks had begun", always=True)

    def _settle(self) -> None:
        """Bring the models together, once after the steps of an epoch."""
        if self._settled:
            return
        self._settled = True
        for each, sync in self._syncs():
            hooks_of(sync).settle(each)
            exchange = exchange_of(each)
            if exchange is not None:
                exchange.settle(averages(each))
        self._average_statistics()
        if not self._compared:
            self._compare("after the first epoch")

    def _average_statistics(self) -> None:
        """Average what layers gather while they train, such as means and variances of batches.

        What is equal in all processes, such as a frozen layer, does not travel and does not change.
        """
        state = self._state(self.model.non_trainable_variables)
        if not self._waits:
            return
        if self._uneven is not None:
            self._uneven.catch_up(state)
        statistics = [each for each in state if tf.as_dtype(each.dtype).is_floating]
        by_type: dict[str, list[Any]] = {}
        for each in differing(self._run, statistics, "statistics of layers"):
            by_type.setdefault(each.dtype, []).append(each)
        for dtype, members in by_type.items():
            started = operations.start(
                self._run.handle,
                "all_reduce",
                [tf.convert_to_tensor(each) for each in members],
                operations.listed(f"statistics of layers, {dtype}", labels_of(members)),
                **operations.averaging(tf.as_dtype(dtype), self._run.size),
            )
            for variable, value in zip(members, started.finish(), strict=True):
                variable.assign(value)

    def _state(self, variables: Any) -> list[Any]:
        """Return the variables that all processes shall have in common."""
        return self._common(comparable(variables))

    def _compare(self, when: str) -> None:
        """Raise UsageError if processes have trained different models, which must not remain unnoticed."""
        self._compared = True
        if not self._waits:
            return
        variables = [
            each
            for each in self._state(self.model.variables)
            if tf.as_dtype(each.dtype).is_floating
        ]
        far = take_rank_0s(self._run, variables, f"the model {when}", always=False)
        if far:
            raise UsageError(
                f"{when}, processes have different models: {far[0]} differs, one of {len(far)} variables. "
                "Compile with rt.distribute(optimizer), also for each further optimizer; a callback "
                "or a train_step that changes weights has to do so in all processes alike"
            )

    def on_train_end(self, logs: Any = None) -> None:
        """Let synchronizers conclude, and compare the models."""
        for each, sync in self._syncs():
            hooks_of(sync).leave(self.model, each)
            hooks_of(sync).release(each)
            exchange = exchange_of(each)
            if exchange is not None:
                if type(exchange.sync).conclude is not Parameters.conclude:
                    exchange.conclude(int(iterations_of(each).numpy()))
                exchange.sync.finish()
        self._compare("when training ended")
        if self._list is None:
            self._end()

    def _end(self) -> None:
        """Take rank 0's value of what a callback has changed in some processes only."""
        if self._waits:
            self._take_rank_0s_at_the_end()
        self._leave()

    def _take_rank_0s_at_the_end(self) -> None:
        state = self._state(self.model.variables)
        far = take_rank_0s(self._run, state, "the model after fit", always=True)
        trained = {each.path for each in self.model.trainable_variables}
        if self._run.rank == 0 and trained & set(far):
            warnings.warn(
                f"callbacks have changed the model in some processes only when fit ended ({far[0]}): all "
                "have rank 0's now",
                RuntimeWarning,
                stacklevel=2,
            )


def _build(model: Any) -> None:
    """Build a model by what the data says of its batches, as Keras does on PyTorch and on JAX."""
    data = getattr(batches_of(model), "_distributed_dataset", None)
    batch = getattr(data, "element_spec", None)
    cause: Exception | None = None
    if all(isinstance(each, tf.TensorSpec) for each in tf.nest.flatten(batch)):
        try:
            model._symbolic_build(data_batch=batch)
        except Exception as error:  # whatever the model raises
            cause = error
    if not model.built:
        raise UsageError(
            f"the model is not built: build it before fit(), so that all processes can start with the same "
            f"weights{': ' if cause else ''}{cause or ''}"
        ) from cause
