# SPDX-License-Identifier: Apache-2.0
"""Print, at the end of fit, what each process did."""

from __future__ import annotations

import time
import warnings
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np

from ..backend.base import backend
from ..backend.distributed import averages_gradients
from ..backend.optimizers import sync_of
from ..costs import Row, differences, numbers, statistics, table
from ..run.session import Session
from ..sync.base import Synchronizer
from .optimizers import distributed


class Summary(keras.callbacks.Callback):  # type: ignore[misc]
    """Callback that counts steps and examples. Rank 0 prints all processes' unless fit() has verbose=0.

    With `compares`, it warns if models count equally that have seen different numbers of examples.
    """

    def __init__(self, run: Session, compares: bool = True) -> None:
        super().__init__()
        self._run, self._compares = run, compares
        self._steps = self._batches = 0
        self._examples = 0.0
        self._began = 0.0
        self._before: list[float] = []

    def on_train_begin(self, logs: Any = None) -> None:
        """Begin to count."""
        self._steps, self._examples = 0, 0.0
        self._began = time.monotonic()
        self._before = numbers(statistics())

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Note how many batches the epoch has had."""
        self._batches = batch + 1

    def on_test_begin(self, logs: Any = None) -> None:
        """Add up the batches before validation counts anew."""
        self._end_batches()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Add up the batches, if there was no validation."""
        self._end_batches()

    def _end_batches(self) -> None:
        """Read what this epoch's training has counted, before an evaluation counts anew."""
        self._steps += self._batches
        loss = getattr(self.model, "_loss_tracker", None)
        if self._batches and loss is not None:
            self._examples += float(loss.count)
        self._batches = 0

    def on_train_end(self, logs: Any = None) -> None:
        """Gather the rows of all processes, and print them in rank 0."""
        syncs = [sync_of(each) for each in distributed(self.model)]
        waits = all(sync.waits for sync in syncs)
        mine = [self._steps, self._examples, time.monotonic() - self._began]
        mine += differences(numbers(statistics()), self._before)
        if waits:
            row = np.array([mine], np.float64)
            lines = backend().all_gather(self._run, row, "what each process did").tolist()
            if self._compares:
                self._compare([line[1] for line in lines], syncs)
        else:  # the others may be far away
            lines = [mine]
        if self._run.rank == 0 and self.params.get("verbose"):
            count = len(Row._fields)
            rows = [Row(*line[:count]) for line in lines]
            print(table(rows, [line[count:] for line in lines]), flush=True)

    def _compare(self, examples: Sequence[float], syncs: Sequence[Synchronizer]) -> None:
        """Warn, in rank 0, if models count equally that have seen different numbers of examples."""
        apart = next((type(sync).__name__ for sync in syncs if not averages_gradients(sync)), None)
        if apart and self._run.rank == 0 and min(examples) != max(examples):
            warnings.warn(
                f"processes have trained on {min(examples):.0f} to {max(examples):.0f} examples, and {apart} "
                "counts their models equally: give all as many, or use rt.sync.AllReduce(), which weighs "
                "losses",
                RuntimeWarning,
                stacklevel=2,
            )
