# SPDX-License-Identifier: Apache-2.0
"""The folder in which callbacks(backup=...) keeps the last epoch, and what each process has for itself."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

import tensorflow as tf

from ..errors import UsageError
from .cut.strips import groups_of
from .durable import put, sync
from .exchange import Exchange, mean_of
from .optimizer import exchange_of
from .process import Run
from .sync.base import Synchronizer
from .tables.placement import is_owned


class Kept(NamedTuple):
    """What the folder has: the number of epochs, and of processes that kept something for themselves."""

    epoch: int
    size: int


def _weights_of(epoch: int) -> str:
    return f"epoch_{epoch}.weights.h5"


def in_parts(model: Any) -> bool:
    """Whether processes have parts of the model, so that all of them load and save it."""
    variables = model.variables
    return groups_of(variables) is not None or any(is_owned(each) for each in variables)


class Backup:
    """One folder. Rank 0 keeps the model in it; each process a file of its own, if it differs from others.

    Processes on several hosts may have a folder each. Methods raise UsageError if a file is not theirs.
    """

    def __init__(self, folder: Path, run: Run, model: Any, sync: Synchronizer) -> None:
        self._folder, self._run, self._model, self._sync = folder, run, model, sync
        self.seeds: list[Any] | None = None
        """The states of all processes' seeds, which the next save() keeps, and restore() finds in rank 0."""

    def restore(self) -> Kept:
        """Loads the model, in rank 0, which the others get from it. Epoch 0 if nothing was kept."""
        if self._run.rank != 0:
            return Kept(0, 0)
        state = self._folder / "state.json"
        try:
            kept = json.loads(state.read_text())
        except FileNotFoundError:
            return Kept(0, 0)
        except ValueError as error:
            raise UsageError(f"{state} is not what callbacks(backup=...) writes: {error}") from None
        if not in_parts(self._model):  # then restore_own() does it
            self._model.load_weights(self._folder / kept["weights"])
        self.seeds = kept.get("seeds")
        return Kept(int(kept["epoch"]), int(kept.get("size", 0)))

    def save(self, epoch: int) -> None:
        """Keeps the model, in rank 0, after all have called save_own(). All of them call it, too, because
        strips and tables are brought together."""
        if self._run.rank != 0 and not in_parts(self._model):
            return
        self._folder.mkdir(parents=True, exist_ok=True)
        weights = _weights_of(epoch)
        self._model.save_weights(self._folder / weights)
        if self._run.rank != 0:
            return
        # The state names the new weights at once or not at all. The old ones stay until the disk has both.
        sync(self._folder / weights)
        written = self._folder / "state.json.new"
        size = self._run.size if self._exchange is not None else 0
        state = {"epoch": epoch, "weights": weights, "size": size, "seeds": self.seeds}
        written.write_text(json.dumps(state))
        put(written, self._folder / "state.json")
        for old in self._folder.glob("epoch_*.weights.h5"):
            if old.name != weights:
                old.unlink()

    @property
    def _is_split(self) -> bool:
        return groups_of(self._model.variables) is not None

    # ---- what each process has for itself ----------------------------------------------------------

    @property
    def _exchange(self) -> Exchange | None:
        return exchange_of(getattr(self._model, "optimizer", None))

    @property
    def _variables(self) -> list[Any]:
        """Those that differ between processes whose models do: parameters, and the optimizer's state."""
        if self._sync.waits and not self._sync.apart:
            return []
        return [*self._model.trainable_variables, *self._model.optimizer.variables]

    def _own(self, rank: int, epoch: int) -> Path:
        return self._folder / f"rank_{rank}.epoch_{epoch}.npz"

    def _newest(self, rank: int) -> Path | None:
        def epoch(file: Path) -> int:
            return int(file.name.split("_")[-1].removesuffix(".npz"))

        return max(self._folder.glob(f"rank_{rank}.epoch_*.npz"), key=epoch, default=None)

    def save_own(self, epoch: int) -> None:
        """Keeps the synchronizer's state and what differs. The epoch before stays until the next call, for
        the case that not all processes come so far."""
        exchange = self._exchange
        if exchange is None:
            return
        self._folder.mkdir(parents=True, exist_ok=True)
        values = [tf.convert_to_tensor(each).numpy() for each in self._variables]
        exchange.save(self._own(self._run.rank, epoch), values)
        recent = {self._own(self._run.rank, each).name for each in (epoch, epoch - 1)}
        for old in self._folder.glob(f"rank_{self._run.rank}.epoch_*.npz"):
            if old.name not in recent:
                old.unlink()

    def restore_own(self, kept: Kept) -> None:
        """Takes what this process kept; if there was another number of processes, what all of them did.

        Strips of another number of processes fit nobody: then the model is what rank 0's group kept.
        """
        exchange, run = self._exchange, self._run
        self._sync.scatter(self._model.optimizer)
        if in_parts(self._model):
            self._model.load_weights(self._folder / _weights_of(kept.epoch))
        if exchange is None or kept.size == 0 or (self._is_split and kept.size != run.size):
            return
        ranks = [run.rank] if kept.size == run.size else range(kept.size)
        found = {rank: self._file(rank, kept.epoch) for rank in ranks}
        files = [file for file in found.values() if file is not None]
        if len(files) < len(found):
            if not self._sync.waits:
                return  # it had not come to the end of an epoch: it begins with rank 0's model
            missing = ", ".join(str(rank) for rank, file in found.items() if file is None)
            raise UsageError(
                f"{self._folder} lacks what rank {missing} of {kept.size} kept after epoch {kept.epoch}: put "
                "the files rank_*.npz of all hosts into it, or remove the folder everywhere to begin anew"
            )
        values = exchange.restore(files, run.rank)
        if len(files) > 1:
            count = len(self._model.trainable_variables) if values else 0
            values[:count] = mean_of(files, count)
        pairs = list(zip(self._variables, values, strict=False))
        if self._is_split and any(tuple(of.shape) != value.shape for of, value in pairs):
            return  # groups were of another size
        for variable, value in pairs:
            variable.assign(value)

    def _file(self, rank: int, epoch: int) -> Path | None:
        if not self._sync.waits:
            return self._newest(rank)
        file = self._own(rank, epoch)
        return file if file.exists() else None
