# SPDX-License-Identifier: Apache-2.0
"""Bring tables together when a model is saved, and take them apart when it is loaded."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import numpy as np

from ...errors import UsageError
from ..backend.tensorflow import operations
from ..backend.tensorflow.equal import broadcast_variables
from ..backend.tensorflow.files import read_in_rank_0
from ..keras.saving import variables_of
from ..run.session import Session
from .placement import is_owned, placement_of

# All rows of the variables of models that are being saved, by id; empty arrays but at rank 0.
_brought: dict[int, Any] = {}
# Those that rank 0 has read, while a model is being loaded.
_read: dict[int, Any] | None = None


def owned_in(model: Any) -> list[Any]:
    """Return the variables of a model and its optimizer that have only rows of this process."""
    return [each for each in variables_of(model) if is_owned(each)]


@contextlib.contextmanager
def whole(model: Any) -> Iterator[bool]:
    """Let rank 0 save the model with whole tables, within the block. Yield whether this process brought them.

    All processes enter it together, unless the tables are there already.
    """
    new = [each for each in owned_in(model) if id(each) not in _brought]
    try:
        for variable in new:
            placement = placement_of(variable)
            assert placement is not None
            found = placement.whole(variable)
            _brought[id(variable)] = np.empty(0) if found is None else found
        yield bool(new)
    finally:
        for variable in new:
            _brought.pop(id(variable), None)


def to_save(variable: Any) -> Any:
    """Return what a file gets of a variable. Raises UsageError if its rows are elsewhere."""
    if not is_owned(variable):
        return variable.numpy()
    if id(variable) not in _brought:
        raise UsageError(
            f"{variable.path} has rows in several processes: call save() of the model that parallelize() "
            "returned, in all of them"
        )
    return _brought[id(variable)]


def assign(variable: Any, value: Any) -> None:
    """Set a variable to what a file has. A table is kept until all processes have their rows."""
    placement = placement_of(variable)
    if placement is None or not placement.owned:
        variable.assign(value)
        return
    if _read is None:
        raise UsageError(
            f"{variable.path} has rows in several processes: call load_weights() of the model that "
            "parallelize() returned, in all of them"
        )
    _read[id(variable)] = np.asarray(value)


class WholeModel:
    """The class of a model whose files have whole tables.

    All processes call its methods. Rank 0 writes; it reads for all if a table has owners.
    """

    _rdmatensor_run: Session

    def save(self, *more: Any, **named: Any) -> None:
        """Save the whole model, in rank 0."""
        self._rdmatensor_write(super().save, *more, **named)  # type: ignore[misc]

    def save_weights(self, *more: Any, **named: Any) -> None:
        """Save the weights and the optimizer's state, in rank 0."""
        self._rdmatensor_write(super().save_weights, *more, **named)  # type: ignore[misc]

    def export(self, *more: Any, **named: Any) -> None:
        """Export the model. Raises UsageError if a table has owners."""
        if owned_in(self):
            raise UsageError(
                "a process has some rows of this model's tables only: save() it, load that file, and "
                "export the model"
            )
        super().export(*more, **named)  # type: ignore[misc]

    def load_weights(self, filepath: Any, *more: Any, **named: Any) -> None:
        """Load weights from the file that rank 0 sees, if a table has owners."""
        global _read
        model: Any = self
        run = self._rdmatensor_run
        optimizer = getattr(model, "optimizer", None)
        if optimizer is not None and not optimizer.built:
            optimizer.build(model.trainable_variables)
        load = super().load_weights  # type: ignore[misc]
        if not owned_in(self):
            load(filepath, *more, **named)
            return
        _read = {}
        try:
            read_in_rank_0(run, lambda: load(filepath, *more, **named), filepath)
            owned = owned_in(self)
            mine = np.array([id(each) in _read for each in owned], np.int64)
            known = operations.broadcast(run, mine, 0, f"tables in {filepath}").numpy()
            for variable, is_known in zip(owned, known, strict=True):
                placement = placement_of(variable)
                if is_known and placement is not None:
                    variable.assign(placement.spread(_read.pop(id(variable), None)))
        finally:
            _read = None
        broadcast_variables(run, variables_of(self), 0, f"what was loaded from {filepath}")

    def _rdmatensor_write(self, write: Any, *more: Any, **named: Any) -> None:
        run = self._rdmatensor_run
        with whole(self) as together:
            if run.rank == 0:
                write(*more, **named)
        if together:
            operations.barrier(run, "the model is saved")
