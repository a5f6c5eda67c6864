# SPDX-License-Identifier: Apache-2.0
"""Keep the trees of rdmatensor.train.init(topology=...) up to date while a model trains."""

from __future__ import annotations

import warnings
from typing import Any

import keras

from ...errors import UsageError
from ..backend.optimizers import sync_of
from ..run.session import Session

# Each pair has the network alone for a moment; all moments together last at most so many seconds.
_MOMENT, _ALL = 0.1, 10.0


class Links(keras.callbacks.Callback):  # type: ignore[misc]
    """Callback, in every process, that times the trees after each epoch, and packs new ones where needed."""

    def __init__(self, run: Session) -> None:
        super().__init__()
        if run.size > 1 and run.topology is None:
            raise UsageError("watch_links needs to know the links: call init() with topology=")
        self._run = run
        self._watch: Any = None

    def on_train_begin(self, logs: Any = None) -> None:
        """Begin to watch the links. Raises UsageError if processes do not wait for each other."""
        from ...topology.watch import Watch  # needs SciPy

        run = self._run
        if run.group is None or run.topology is None:
            return
        if not sync_of(self.model.optimizer).waits:
            raise UsageError(
                "watch_links needs processes that wait for each other: the synchronizer's do not"
            )
        seconds = min(_MOMENT, _ALL / run.size**2)
        self._watch = Watch(
            run.group, run.topology, roots=[0], seconds=seconds, timeout=run.timeout
        )

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Time the trees, and share new ones if a link has slowed down."""
        if self._watch is None or not self._watch.check():
            return
        from ...topology.agree import share

        run = self._run
        assert run.group is not None
        run.topology = share(run.group, self._watch.topology or "", run.timeout)
        for part in run.parts:
            part.follow(run.topology)
        if run.rank == 0:
            warnings.warn(
                f"a link has slowed down: the trees were packed anew after epoch {epoch + 1}",
                RuntimeWarning,
                stacklevel=2,
            )
