# SPDX-License-Identifier: Apache-2.0
"""The callbacks for Keras's fit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import keras

from .cut.leading import only_on_rank_0
from .links import Links
from .logs import Logs
from .process import current
from .shares import Shares
from .summary import Summary
from .together import Together
from .warmup import Warmup


def callbacks(
    *, backup: str | Path | None = None, warmup_epochs: float = 0, watch_links: bool = False
) -> list[Any]:
    """The callbacks that fit() needs in every process. Put them before your own.

    They copy rank 0's model and optimizer to all processes before the first step; merge the metrics of
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
    found: list[Any] = [] if run.size == 1 else [Logs(run)]
    found.append(Together(run, Path(backup) if backup is not None else None))
    if run.size > 1:
        found.append(Shares())
    if warmup_epochs > 0:
        found.append(Warmup(run, warmup_epochs))
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
