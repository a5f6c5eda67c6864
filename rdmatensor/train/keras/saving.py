# SPDX-License-Identifier: Apache-2.0
"""Save models of which processes have parts, or whose optimizers' state is divided."""

from __future__ import annotations

from typing import Any

from ..backend.tensorflow import operations
from ..backend.tensorflow.optimizer import hooks_of, sync_of
from ..run.session import current
from .backup import in_parts
from .optimizers import distributed


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


def variables_of(model: Any) -> list[Any]:
    """Return the variables of a model and its optimizer."""
    optimizer = getattr(model, "optimizer", None)
    return [*model.variables, *(optimizer.variables if optimizer is not None else [])]
