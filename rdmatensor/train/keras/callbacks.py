# SPDX-License-Identifier: Apache-2.0
"""Make the callbacks for Keras's fit."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import keras

from ..run.session import current
from .links import Links
from .metrics import Logs
from .pauses import Plan
from .saving import follow, leading
from .summary import Summary
from .synchronize import SynchronizeCallback
from .uneven import Uneven
from .warmup import Warmup


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

    They copy rank 0's model and optimizer to all processes before the first step; merge the metrics of each
    epoch, so that callbacks that stop training or change the rate decide alike; average what layers such as
    BatchNormalization have gathered; and leave the progress bar to rank 0, which prints a table of what each
    process did at the end.

    `backup` is a folder in which rank 0 keeps the last epoch; fit() goes on after it when the program starts
    again. With `backup_every`, a number of batches or a timedelta, it also goes on inside an epoch: it skips
    the batches that have been trained, so the data has to come in the same order. After `time_limit` seconds
    in any process, all stop after the same step, and fit() returns. If `preemptible`, a SIGTERM to any
    process lets all finish a step, keep a backup if there is one, and leave with SystemExit. Processes look
    at most a second's worth of steps later. `warmup_epochs` raises the learning rate during the first epochs,
    from its value divided by the number of processes. With `watch_links`, the trees of init(topology=...) are
    timed after each epoch, for about 0.1 s, and packed anew if a link has slowed down
    (rdmatensor.topology.Watch). Raises UsageError if there are none; fit() does if the synchronizer waits for
    nobody.

    With `uneven`, processes may have different numbers of batches, each at least one: a process that has no
    more takes part in the remaining steps of an epoch, and counts nothing in them. All processes give it, or
    none. Without it, fit() raises UsageError if it knows that the numbers differ. With it, fit() raises
    UsageError if the synchronizer does not average the gradients of each step, and for models that split() or
    parallelize() has divided. It costs an exchange of a few bytes before each step.
    """
    run, plan = current(), Plan(backup_every, time_limit, preemptible)
    plan.check(backup is not None)
    joins = Uneven(run) if uneven and run.size > 1 and not run.returns else None
    found: list[Any] = [] if joins is None else [joins]
    if run.size > 1:
        found.append(Logs(run))
    found.append(
        SynchronizeCallback(run, Path(backup) if backup is not None else None, plan, joins)
    )
    if warmup_epochs > 0:
        found.append(Warmup(run, warmup_epochs))
    if watch_links:
        found.append(Links(run))
    if run.size > 1 and not run.returns:
        found.append(Summary(run))
    return found


def on_rank_0(callback: Any) -> Any:
    """Return the callback in rank 0, and one that does nothing elsewhere. Use it for checkpoints and logs.

    Call it in all processes, with the same kind of callback. What it saves of a divided model is the whole:
    the other processes follow whatever the callback overrides.
    """
    run = current()
    run.saves |= isinstance(callback, keras.callbacks.ModelCheckpoint)
    if run.size == 1:
        return callback
    here = callback if run.rank == 0 else keras.callbacks.Callback()
    for name in dir(keras.callbacks.Callback):
        act = getattr(callback, name)
        default = getattr(keras.callbacks.Callback, name)
        if name.startswith("on_") and getattr(act, "__func__", None) is not default:
            setattr(here, name, _lead(here, act) if run.rank == 0 else _follow(here, callback))
    return here


def _lead(here: Any, act: Callable[..., Any]) -> Callable[..., Any]:
    def lead(*arguments: Any, **named: Any) -> Any:
        with leading(here.model):
            return act(*arguments, **named)

    return lead


def _follow(here: Any, callback: Any) -> Callable[..., None]:
    return lambda *_, **__: follow(here.model, type(callback).__name__)
