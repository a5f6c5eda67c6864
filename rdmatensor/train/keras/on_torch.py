# SPDX-License-Identifier: Apache-2.0
"""Train one model in all processes by Keras's fit on PyTorch: what programs call there."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import keras
import numpy as np

from ...errors import Unsupported, UsageError
from ..backend.base import backend
from ..backend.interim import until_fit_ends
from ..backend.optimizers import iterations_of
from ..backend.seeds import Streams, is_seed
from ..backend.torch import equal
from ..backend.torch.optimizer import Exchange
from ..run.session import Session, current
from ..sync.base import average
from .callback_list import FirstAndLast, files_of, refuse_common
from .metrics import Logs
from .optimizers import distributed, left_out
from .pauses import Plan
from .steps_on_torch import weighs
from .summary import Summary


def callbacks(
    *,
    backup: str | Path | None = None,
    backup_every: int | timedelta | None = None,
    time_limit: float | None = None,
    preemptible: bool = False,
    warmup_epochs: float = 0,
    watch_links: bool = False,
    uneven: bool = False,
) -> list[Any]:
    """Return the callbacks that fit() needs in every process. Put them before your own.

    They do what those of rdmatensor.train.callbacks do on TensorFlow without arguments. Raises Unsupported
    for all arguments.
    """
    given = {
        "backup": backup,
        "backup_every": backup_every,
        "time_limit": time_limit,
        "preemptible": preemptible,
        "warmup_epochs": warmup_epochs,
        "watch_links": watch_links,
        "uneven": uneven,
    }
    for name, value in given.items():
        if value:
            raise Unsupported(
                f"callbacks({name}=...) needs KERAS_BACKEND=tensorflow. On PyTorch, "
                "rt.on_rank_0(keras.callbacks.ModelCheckpoint(...)) keeps models: what rank 0 loads before "
                "fit(), all get",
                "UNSUPPORTED",
            )
    run = current()
    return [] if run.size == 1 else [Logs(run), Together(run), Summary(run, compares=False)]


def on_rank_0(callback: Any) -> Any:
    """Return the callback in rank 0, and one that does nothing elsewhere. Use it for checkpoints and logs."""
    return callback if current().rank == 0 else keras.callbacks.Callback()


def broadcast_variables(variables: Sequence[Any], root: int = 0) -> None:
    """Set variables of Keras, or all those of a model, to their values in rank `root`.

    All processes call it. States of Keras's SeedGenerators are made to differ instead, as callbacks() does.
    Raises what Group raises, in all processes, if these have other variables.
    """
    run = current()
    variables = list(getattr(variables, "variables", variables))
    equal.broadcast_variables(run, variables, root, "variables")
    if run.size > 1:
        Streams(run, variables).part(root)


class Together(FirstAndLast):
    """Callback that keeps the models of all processes together.

    From the last step of an epoch to the first one of the next, all processes have one model. Where processes
    train apart, that is the mean.
    """

    def __init__(self, run: Session) -> None:
        super().__init__(
            run,
            Plan(),
            on_epoch_begin=lambda *_, **__: self._part(),
            on_epoch_end=lambda *_, **__: self._stop_together(),
        )
        self._in_fit = False
        self._done = 0  # batches of this epoch
        self._settled = self._warned = False

    def on_train_begin(self, logs: Any = None) -> None:
        """Give all processes rank 0's model and optimizers."""
        model, run = self.model, self._run
        self._in_fit, self._settled = True, False
        until_fit_ends(model, self._end_fit)
        if not model.built:
            raise UsageError(
                "the model is not built: build it before fit(), so that all processes can start with the "
                "same weights"
            )
        self._optimizers = distributed(model)
        if left_out(model) or not self._optimizers:
            raise UsageError(
                "an optimizer of the model is not distributed, and processes would train different models: "
                "compile with rt.distribute(optimizer)"
            )
        if self._waits:
            self._agree_on_callbacks()
        if not model.optimizer.built:
            model.optimizer.build(model.trainable_variables)
        state = list(model.variables)
        for each in self._optimizers:
            state += each.variables
            object.__setattr__(each, "compared", True)
        equal.broadcast_variables(run, state, 0, "the model at the start")
        Streams(run, model.variables).part()
        self._begin_pauses()
        if not getattr(model.train_step, "weighs", False):
            model.make_train_function(force=True)  # made before the optimizer was distributed

    def _end_fit(self) -> None:
        self._in_fit = False

    def _exchanges(self) -> list[tuple[Any, Exchange]]:
        pairs = ((each, each._rdmatensor_exchange) for each in self._optimizers)
        return [(each, exchange) for each, exchange in pairs if exchange is not None]

    def _agree_on_callbacks(self) -> None:
        """Raise UsageError in all processes if they take other steps, or if a callback cannot work."""
        others = [] if self._list is None else self._list.callbacks
        restores = any(isinstance(each, keras.callbacks.BackupAndRestore) for each in others)
        files = files_of(others)
        steps_here = self.params.get("steps") or 0
        mine = np.array([[steps_here, restores, len(files), self._others_look()]], np.int64)
        found = backend().all_gather(self._run, mine, "callbacks, and steps in an epoch")
        self._looked_at = bool(found[:, 3].any())
        refuse_common(self._run, files, int(found[:, 2].max()))
        steps = found[:, 0]
        if steps.min() != steps.max():
            raise UsageError(
                f"processes have {steps.min()} to {steps.max()} batches in an epoch, and {steps_here} here: "
                "rt.shard(data) gives all as many"
            )
        if found[:, 1].any():
            raise UsageError(
                "BackupAndRestore keeps and restores the model of one process: use "
                "rt.on_rank_0(keras.callbacks.ModelCheckpoint(...)), and load its file before fit()"
            )

    def _part(self) -> None:
        """Let training go on after what looked at the common model."""
        self._settled = False
        for _, exchange in self._exchanges():
            exchange.part()

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Begin to count batches."""
        self._done = 0

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Tell synchronizers of the loss, and stop if a callback has said so in any process."""
        self._observe(batch, logs)
        batches, self._done = batch + 1 - self._done, batch + 1
        self._stop_after(self._pause(batches))

    def on_test_begin(self, logs: Any = None) -> None:
        """Bring the models together before validation."""
        if self._in_fit:
            self._settle()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Bring the models together."""
        self._settle()

    def _settle(self) -> None:
        if self._settled:
            return
        self._settled = True
        if not self._waits:
            return
        self._compare_examples()
        for _, exchange in self._exchanges():
            exchange.settle()
        self._average_statistics()
        self._refuse_different("after an epoch")

    def _compare_examples(self) -> None:
        """Warn if the mean counts processes equally that have seen different numbers of examples."""
        loss = getattr(self.model, "_loss_tracker", None)
        if loss is None or self._warned or weighs(self.model):
            return
        mine = np.array([float(loss.count)], np.float64)
        counts = backend().all_gather(self._run, mine, "examples of an epoch")
        if counts.min() != counts.max():
            self._warned = True
            warnings.warn(
                f"processes have trained on {counts.min():.0f} to {counts.max():.0f} examples in an epoch, "
                "and count equally: give all as many, by rt.shard(data), and batches of one size",
                RuntimeWarning,
                stacklevel=2,
            )

    def _state(self, variables: Sequence[Any]) -> list[Any]:
        """Return the numbers that all processes shall have in common."""
        return [
            each
            for each in self._common(variables)
            if not is_seed(each) and "float" in str(each.dtype)
        ]

    def _average_statistics(self) -> None:
        """Average what layers gather while they train, such as means and variances of batches."""
        statistics = self._state(self.model.non_trainable_variables)
        if not statistics:
            return
        values = [keras.ops.convert_to_numpy(each) for each in statistics]
        x = np.concatenate([np.ravel(each).astype(np.float64) for each in values])
        if not average(self._run, x, "statistics of layers"):
            return
        ends = np.cumsum([each.size for each in values])[:-1]
        for variable, part in zip(statistics, np.split(x, ends), strict=True):
            variable.assign(part.reshape(variable.shape))

    def _refuse_different(self, when: str) -> None:
        """Raise UsageError if processes have trained different models, which must not remain unnoticed."""
        far = equal.take_rank_0s(self._run, self._state(self.model.variables), f"the model {when}")
        if far:
            raise UsageError(
                f"{when}, processes have different models: {far[0]} differs, one of {len(far)} variables. A "
                "callback or a train_step that changes weights has to do so in all processes alike"
            )

    def on_train_end(self, logs: Any = None) -> None:
        """Let synchronizers conclude."""
        for each, exchange in self._exchanges():
            exchange.part()
            exchange.conclude(int(iterations_of(each)))
            exchange.sync.finish()
        if self._waits:
            self._refuse_different("when training ended")
