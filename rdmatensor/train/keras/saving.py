# SPDX-License-Identifier: Apache-2.0
"""Save and load models of which processes have parts, or whose optimizers' state is divided, as a whole."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import tensorflow as tf

from ...errors import UsageError
from ..backend.distributed import hooks_of
from ..backend.optimizers import sync_of
from ..backend.tensorflow import operations
from ..backend.tensorflow.equal import broadcast_variables
from ..backend.tensorflow.parts import part_of
from ..run.session import Session, current
from .optimizers import distributed

# What a callback of rank 0 does, which the others follow.
_DONE, _FAILED, _SAVE, _LOAD = range(4)
# While such a callback runs: the others wait to be told what it does.
_leads = False
# While a model is saved or loaded: whole variables of which processes have parts, by id; None but in rank 0.
_wholes: dict[int, Any] | None = None


def save(model: Any, path: Any) -> None:
    """Save a Keras model from rank 0. Call it in all processes: they may have parts of it, or of its state.

    It returns when the file is written. Raises what model.save raises, in rank 0.
    """
    run, optimizers = current(), distributed(model)
    for each in optimizers:
        hooks_of(sync_of(each)).gather(each)
    try:
        if run.rank == 0 or in_parts(model):
            model.save(path)
    finally:
        for each in optimizers:
            hooks_of(sync_of(each)).release(each)
        operations.barrier(run, "save")


def read_in_rank_0(run: Session, read: Callable[[], None], path: object) -> None:
    """Call `read` in rank 0. All processes call this; if it fails there, the others raise UsageError."""
    failed = None
    if run.rank == 0:
        try:
            read()
        except Exception as error:  # the others must not wait for what does not come
            failed = error
    went = operations.broadcast(run, np.array([failed is None], np.int64), 0, "loading a file")
    if failed is not None:
        raise failed
    if not int(went[0]):
        raise UsageError(f"rank 0 could not load {path}")


def in_parts(model: Any) -> bool:
    """Return whether processes have parts of the model, so that all of them load and save it."""
    return any(map(part_of, model.variables))


@contextmanager
def leading(model: Any) -> Iterator[None]:
    """Let the other processes `follow` what a callback of rank 0 saves and loads within the block."""
    global _leads
    if model is None or _leads or not in_parts(model):  # a callback may call another one
        yield
        return
    _leads, last = True, _FAILED
    try:
        yield
        last = _DONE
    finally:
        _leads = False
        _tell(last)


def follow(model: Any, name: str) -> None:
    """Save and load parts of a model as callback `name` of rank 0 does. Raises UsageError if that fails."""
    while model is not None and in_parts(model) and (word := _tell()) != _DONE:
        if word == _FAILED:
            raise UsageError(f"{name} failed in rank 0, which knows why")
        (model.save_weights if word == _SAVE else model.load_weights)("what rank 0 names")


def _tell(word: int = _DONE) -> int:
    """Return rank 0's word, in all processes."""
    words = np.array([word], np.int64)
    return int(operations.broadcast(current(), words, 0, "what a callback of rank 0 does")[0])


class Whole:
    """A layer or an optimizer whose files have whole variables."""

    @property
    def _rdmatensor_saved(self) -> Any:
        """The variables in a file, in their order."""
        thing: Any = self
        return thing.variables

    def save_own_variables(self, store: Any) -> None:
        """Save whole variables, which the model has brought together."""
        for number, variable in enumerate(self._rdmatensor_saved):
            value = (_wholes or {}).get(id(variable))
            if part_of(variable) is None:
                value = np.asarray(tf.convert_to_tensor(variable))
            if value is None:
                raise UsageError(
                    f"processes have parts of {variable.path}: save the whole model by its own save() or "
                    "save_weights(), in all processes"
                )
            store[str(number)] = value

    def load_own_variables(self, store: Any) -> None:
        """Take this process's parts of whole variables, or keep these until all processes get theirs."""
        variables = self._rdmatensor_saved
        if len(store.keys()) != len(variables):
            super().load_own_variables(store)  # type: ignore[misc]  # which raises or warns
            return
        for number, variable in enumerate(variables):
            part, value = part_of(variable), np.asarray(store[str(number)])
            if part is not None and part.shape != value.shape:
                raise UsageError(
                    f"{variable.path} has the shape {part.shape}, the file's {value.shape}"
                )
            if part is not None and _wholes is not None:
                _wholes[id(variable)] = value
            else:
                variable.assign(value if part is None else part.of(value))


class WholeModel:
    """A model whose files have whole variables. All processes call its methods.

    Rank 0 writes; it reads for all if processes have parts.
    """

    _rdmatensor_run: Session

    def save(self, *more: Any, **named: Any) -> None:
        """Save the whole model, in rank 0. It loads where rdmatensor is not installed."""
        self._rdmatensor_write(super().save, *more, **named)  # type: ignore[misc]

    def save_weights(self, *more: Any, **named: Any) -> None:
        """Save the weights of the whole model and the state of its optimizer, in rank 0."""
        self._rdmatensor_write(super().save_weights, *more, **named)  # type: ignore[misc]

    def export(self, *more: Any, **named: Any) -> None:
        """Export the model. Raises UsageError if processes have parts of it."""
        if in_parts(self):
            raise UsageError(
                "a process has parts of this model only: save() it, load that file, and export the model"
            )
        super().export(*more, **named)  # type: ignore[misc]

    def load_weights(self, filepath: Any, *more: Any, **named: Any) -> None:
        """Load what a whole or a divided model has saved, from the file that rank 0 sees."""
        global _wholes
        model: Any = self
        optimizer = getattr(model, "optimizer", None)
        if optimizer is not None and not optimizer.built:
            optimizer.build(model.trainable_variables)
        load = super().load_weights  # type: ignore[misc]
        if not in_parts(self):
            load(filepath, *more, **named)
            return
        if _leads:
            _tell(_LOAD)
        run, variables = self._rdmatensor_run, _variables_of(self)
        parts = [(each, part) for each in variables if (part := part_of(each)) is not None]
        _wholes = {}
        try:
            read_in_rank_0(run, lambda: load(filepath, *more, **named), filepath)
            found = np.array([id(each) in _wholes for each, _ in parts], np.int64)
            found = operations.broadcast(run, found, 0, "which variables a file has").numpy()
            for (variable, part), is_there in zip(parts, found, strict=True):
                if is_there:
                    dtype = tf.as_dtype(variable.dtype).as_numpy_dtype
                    variable.assign(part.received(_wholes.pop(id(variable), None), dtype))
        finally:
            _wholes = None
            operations.trim()
        whole = [each for each in variables if part_of(each) is None]
        broadcast_variables(run, whole, 0, "what was loaded")

    def _rdmatensor_write(self, write: Any, *more: Any, **named: Any) -> None:
        """Bring the parts together in rank 0, and let it write."""
        global _wholes
        run = self._rdmatensor_run
        if not in_parts(self):
            if run.rank == 0:
                write(*more, **named)
            return
        if _leads:
            _tell(_SAVE)
        try:
            parts = [(each, part) for each in _variables_of(self) if (part := part_of(each))]
            _wholes = {id(each): part.whole(each) for each, part in parts}
            if run.rank == 0:
                write(*more, **named)
        finally:
            _wholes = None
            operations.trim()
            operations.barrier(run, "the model is saved")


def _variables_of(model: Any) -> list[Any]:
    """Return the variables of a model and its optimizer."""
    optimizer = getattr(model, "optimizer", None)
    return [*model.variables, *(optimizer.variables if optimizer is not None else [])]
