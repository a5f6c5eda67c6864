# SPDX-License-Identifier: Apache-2.0
"""Keep the state of training in the folder of callbacks(backup=...), and what each process has for itself."""

from __future__ import annotations

import errno
import json
import os
import warnings
import weakref
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from zipfile import BadZipFile

import numpy as np
import tensorflow as tf

from ...errors import UsageError
from ..backend.distributed import hooks_of
from ..backend.interim import until_fit_ends
from ..backend.optimizers import sync_of
from ..backend.tensorflow import operations
from ..backend.tensorflow.exchange import Kept as State
from ..backend.tensorflow.optimizer import kept_of
from ..run.session import Session
from ..sync.base import Array, having
from .saving import in_parts, read_in_rank_0

# Some file systems cannot flush folders.
_REFUSED = {errno.EINVAL, errno.ENOTSUP, errno.ENOSYS}


class Kept(NamedTuple):
    """The content of a folder: how far training was, and of how many processes."""

    fit: int = 0
    """Which call of fit() for the model in a program this was, from 0."""
    epoch: int = 0
    batch: int = 0
    """How many batches of the epoch have been trained."""
    number: int = 0
    """How often something was kept."""
    size: int = 0
    """Of how many processes there are files; 0 if none has anything of its own."""
    processes: int = 0


def _weights_of(number: int) -> str:
    return f"kept_{number}.weights.h5"


class Backup:
    """A folder of backups.

    Rank 0 keeps the model in it; each process a file of its own, if it differs from others.

    Processes on several hosts may have a folder each. Methods raise UsageError if a file is not theirs.
    """

    def __init__(self, folder: Path, run: Session, model: Any, optimizers: Sequence[Any]) -> None:
        self._folder, self._run, self._model = folder, run, model
        self._optimizers = optimizers
        self._kept = Kept()
        self._fit = 0
        self._metrics: Mapping[str, Array] = {}
        self.seeds: list[Any] | None = None
        """The states of all processes' seeds, which the next save() keeps, and restore() finds."""
        self._earlier = ""
        """What an earlier fit() of this program did with the folder, if it trained another model."""

    def begin(self) -> None:
        """Count this call of fit(): after a break, a program calls it as often as before."""
        folders, name = self._run.folders, str(self._folder.resolve())
        model, count = folders.get(name, (lambda: None, 0))
        if model() is self._model:
            self._fit = count
        elif count:
            self._earlier = "another model of this program"
        folders[name] = weakref.ref(self._model), self._fit + 1

    def restore(self) -> Kept:
        """Load the model in rank 0, from which the others get it. All processes call it.

        Return what was kept of this call of fit(), or of a later one.
        """
        found = self._read() if self._run.rank == 0 else {}
        state = self._shared(found)
        if not state:
            return self._kept
        self._kept = Kept(**{name: int(state.get(name, 0)) for name in Kept._fields})
        if self._kept.fit < self._fit:
            return Kept(number=self._kept.number)  # the model has it, and goes on from there
        self.seeds = state.get("seeds")
        self._build(state.get("built", {}))
        if not in_parts(self._model):  # then restore_own() does it
            file = self._folder / str(state["weights"])
            read_in_rank_0(self._run, lambda: self._load(file), file)
        return self._kept

    def _read(self) -> Mapping[str, Any]:
        file = self._folder / "state.json"
        try:
            kept: dict[str, Any] = json.loads(file.read_text())
            return kept if {"epoch", "weights"} <= set(kept) else {"wrong": "epoch is missing"}
        except FileNotFoundError:
            return {}
        except (ValueError, TypeError) as error:
            return {"wrong": str(error)}

    def _shared(self, found: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return, in all processes, what rank 0 has read."""
        if self._run.size > 1:
            text = np.frombuffer(json.dumps(found).encode(), np.uint8)
            count = np.array([text.size], np.int64)
            length = int(operations.broadcast(self._run, count, 0, "the size of a backup")[0])
            text = text if self._run.rank == 0 else np.zeros(length, np.uint8)
            text = operations.broadcast(self._run, text, 0, "how far training was").numpy()
            found = json.loads(text.tobytes())
        if "wrong" in found:
            raise UsageError(
                f"{self._folder / 'state.json'} is not what callbacks(backup=...) writes: {found['wrong']}"
            )
        return found

    def _load(self, file: Path) -> None:
        try:
            self._model.load_weights(file)
        except (ValueError, KeyError, OSError) as error:
            raise UsageError(
                f"{file} is a backup of another model, or is damaged: give each model a folder of its "
                f"own, or remove this one to begin anew ({str(error).splitlines()[0]})"
            ) from error

    def remaining(self, kept: Kept, epochs: int) -> Kept:
        """Return where this call of fit() begins.

        Raises UsageError if the folder has another model's training.
        """
        if kept.fit > self._fit:
            kept = kept._replace(epoch=epochs, batch=0)
        if kept.processes != self._run.size:  # as many rows, if batches are as large
            kept = kept._replace(batch=kept.batch * kept.processes // self._run.size)
        if not (kept.epoch or kept.batch):
            return kept
        if self._earlier and kept.epoch >= epochs:
            raise UsageError(
                f"{self._folder} has all {epochs} epochs of {self._earlier}: give each model a folder of "
                "its own"
            )
        text = ""
        if self._earlier:
            text = f"{kept.epoch} epochs of {self._earlier}, from which this one goes on: give each model a "
            text += "folder of its own"
        elif kept.epoch >= epochs:
            text = f"all {epochs} epochs of this fit(), which trains nothing: raise epochs, or remove the "
            text += "folder to begin anew"
        if text and self._run.rank == 0:
            warnings.warn(f"{self._folder} has {text}", RuntimeWarning, stacklevel=2)
        return kept

    def save(self, epoch: int, batch: int = 0) -> None:
        """Keep the model, in rank 0, after all processes have called save_own().

        All of them call it, because strips and tables are brought together.
        """
        if self._run.rank != 0 and not in_parts(self._model):
            return
        self._folder.mkdir(parents=True, exist_ok=True)
        weights = _weights_of(self._kept.number)
        self._model.save_weights(self._folder / weights)
        if self._run.rank != 0:
            return
        # The state names the new weights at once or not at all. The old ones stay until the disk has both.
        sync(self._folder / weights)
        written = self._folder / "state.json.new"
        processes = self._run.size
        size = processes if self._states or batch else 0
        kept = Kept(self._fit, epoch, batch, self._kept.number, size, processes)
        state = {**kept._asdict(), "weights": weights, "built": self._built(), "seeds": self.seeds}
        written.write_text(json.dumps(state))
        put(written, self._folder / "state.json")
        for old in self._folder.glob("kept_*.weights.h5"):
            if old.name != weights:
                old.unlink()

    def _built(self) -> dict[int, list[int]]:
        """Return, for each optimizer that has begun, by number, the model's variables that it updates."""
        places = {id(each): i for i, each in enumerate(self._model.variables)}
        return {
            number: [places[id(each)] for each in optimizer._trainable_variables]
            for number, optimizer in enumerate(self._optimizers)
            if optimizer.built and all(id(v) in places for v in optimizer._trainable_variables)
        }

    def _build(self, built: Mapping[str, Sequence[int]]) -> None:
        """Let optimizers have variables that can be loaded."""
        variables = self._model.variables
        for number, places in built.items():
            if int(number) < len(self._optimizers) and max(places, default=0) < len(variables):
                optimizer = self._optimizers[int(number)]
                if not optimizer.built:
                    optimizer.build([variables[i] for i in places])

    @property
    def _states(self) -> list[State]:
        found = (kept_of(each) for each in self._optimizers)
        return [each for each in found if each is not None]

    @property
    def _waits(self) -> bool:
        return all(sync_of(each).waits for each in self._optimizers)

    @property
    def _variables(self) -> list[Any]:
        """The variables that differ where models do: parameters, and the state of optimizers."""
        if not any(each.sync.apart or not each.sync.waits for each in self._states):
            return []
        state = [each for optimizer in self._optimizers for each in optimizer.variables]
        return [*self._model.trainable_variables, *state]

    def _file_of(self, rank: int, number: int) -> Path:
        return self._folder / f"rank_{rank}.kept_{number}.npz"

    def _newest(self, rank: int) -> Path | None:
        return max(self._folder.glob(f"rank_{rank}.kept_*.npz"), key=_number_in, default=None)

    def _of_layers(self) -> dict[str, Any]:
        """Return, by name, what layers and metrics gather inside an epoch in each process for itself."""
        found = {f"layers {i}": each for i, each in enumerate(self._model.non_trainable_variables)}
        for metric in self._model.metrics:
            of_one = {f"metrics {metric.name} {i}": v for i, v in enumerate(metric.variables)}
            found |= of_one
        return {name: each for name, each in found.items() if tf.as_dtype(each.dtype) != tf.string}

    def save_own(self, batch: int = 0, metrics: bool = True) -> None:
        """Keep the synchronizers' state and what differs, after so many batches of an epoch.

        What was kept before stays until the next call, for the case that not all processes come so far.
        """
        self._kept = self._kept._replace(number=self._kept.number + 1)
        kept = {
            f"optimizer {i} {name}": value
            for i, each in enumerate(self._states)
            for name, value in each.kept().items()
        }
        if batch:
            values = self._of_layers().items()
            kept |= {
                name: tf.convert_to_tensor(each).numpy()
                for name, each in values
                if metrics or not name.startswith("metrics")
            }
        if not kept:
            return
        self._folder.mkdir(parents=True, exist_ok=True)
        own = {key: value for each in self._states for key, (_, value) in each.apart.items()}
        for i, each in enumerate(self._variables):
            value = own.get(id(each))
            kept[f"variable {i}"] = tf.convert_to_tensor(each).numpy() if value is None else value
        number = self._kept.number
        write(self._file_of(self._run.rank, number), kept)
        recent = {self._file_of(self._run.rank, each).name for each in (number, number - 1)}
        for old in self._folder.glob(f"rank_{self._run.rank}.kept_*.npz"):
            if old.name not in recent:
                old.unlink()

    def restore_own(self, kept: Kept) -> None:
        """Take what this process kept; if there was another number of processes, what all of them did.

        Strips of another number of processes fit nobody: then the model is what rank 0's group kept. Raises
        UsageError if a file is missing.
        """
        run = self._run
        for each in self._optimizers:
            hooks_of(sync_of(each)).scatter(each)
        if in_parts(self._model):
            self._load(self._folder / _weights_of(kept.number))
        if kept.size == 0 or (in_parts(self._model) and kept.size != run.size):
            return
        ranks = [run.rank] if kept.size == run.size else range(kept.size)
        found = {rank: self._file(rank, kept.number) for rank in ranks}
        files = [file for file in found.values() if file is not None]
        if len(files) < len(found):
            if not self._waits:
                return  # it had not come to the end of an epoch: it begins with rank 0's model
            missing = ", ".join(str(rank) for rank, file in found.items() if file is None)
            raise UsageError(
                f"{self._folder} lacks what rank {missing} of {kept.size} kept after epoch {kept.epoch}: put "
                "the files rank_*.npz of all hosts into it, or remove the folder everywhere to begin anew"
            )
        values = [read(file) for file in files]
        for i, state in enumerate(self._states):
            state.restore([having(each, f"optimizer {i} ") for each in values], run.rank)
        mine = having(values[run.rank % len(values)], "variable ")
        if len(values) > 1:
            mine |= _mean_of(values, len(self._model.trainable_variables) if mine else 0)
        pairs = [(each, mine[str(i)]) for i, each in enumerate(self._variables) if str(i) in mine]
        if in_parts(self._model) and any(tuple(of.shape) != value.shape for of, value in pairs):
            return  # groups were of another size
        for variable, value in pairs:
            variable.assign(value)
        if kept.batch and len(values) == 1:
            for name, variable in self._of_layers().items():
                if name.startswith("layers") and name in values[0]:
                    variable.assign(values[0][name])
            self._metrics = values[0]

    def restore_metrics(self) -> None:
        """Let metrics go on inside an epoch, as far as they exist before its first step."""
        for name, variable in self._of_layers().items():
            if name.startswith("metrics") and name in self._metrics:
                variable.assign(self._metrics[name])

    def _file(self, rank: int, number: int) -> Path | None:
        if not self._waits:
            return self._newest(rank)
        file = self._file_of(rank, number)
        return file if file.exists() else None


def skip(model: Any, batches: int, saw: Callable[[Any], None]) -> None:
    """Let the next steps of fit() take so many batches without training on them. Tell `saw` of each."""
    train, left = model.train_function, batches

    def without_training(iterator: Any) -> Any:
        nonlocal left
        if left <= 0:
            model.train_function = train
            return train(iterator)
        for _ in range(model.steps_per_execution):
            batch = next(iterator, None)
            if batch is not None:  # a process may have fewer than others
                saw(batch)
        left -= model.steps_per_execution
        return model.get_metrics_result()

    def end() -> None:
        if model.train_function is without_training:
            model.train_function = None  # Keras makes its own when fit begins

    model.train_function = without_training
    until_fit_ends(model, end)


def _number_in(file: Path) -> int:
    return int(file.name.split("_")[-1].removesuffix(".npz"))


def write(file: Path, values: Mapping[str, Array]) -> None:
    """Write arrays by name, at once or not at all, and wait for the disk."""
    written = file.with_name(file.name + ".new")
    with written.open("wb") as stream:
        np.savez(stream, **dict(values))  # type: ignore[arg-type]
    put(written, file)


def read(file: Path) -> dict[str, Array]:
    """Read what `write` wrote. Raises UsageError if the file is something else."""
    try:
        with np.load(file) as kept:
            return {name: kept[name] for name in kept.files}
    except (ValueError, OSError, EOFError, BadZipFile) as error:
        raise UsageError(f"{file} is not what callbacks(backup=...) writes: {error}") from None


def sync(path: Path) -> None:
    """Wait until the disk has the content of a file, or the names in a folder."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if not (path.is_dir() and error.errno in _REFUSED):
            raise
    finally:
        os.close(descriptor)


def put(written: Path, file: Path) -> None:
    """Give `file` the content of `written`, at once. The disk has it then, and all names in the folder."""
    sync(written)
    sync(file.parent)  # the names of what the new file speaks of
    written.replace(file)
    sync(file.parent)


def _mean_of(kept: Sequence[Mapping[str, Array]], count: int) -> dict[str, Array]:
    """Return the means of the first `count` variables that processes kept, by number."""
    means = {}
    for number in range(count):
        values = [each[f"variable {number}"] for each in kept]
        means[str(number)] = np.mean(values, axis=0).astype(values[0].dtype)
    return means
