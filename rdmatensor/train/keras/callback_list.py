# SPDX-License-Identifier: Apache-2.0
"""Look at the list that Keras calls callbacks in: its order, and the files they write."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path
from types import FrameType
from typing import Any
from zlib import crc32

import keras
import numpy as np

from ...errors import UsageError
from ..backend.base import backend
from ..run.session import Session


def list_of(callback: Any) -> Any:
    """Return Keras's list that the callback is in, while it sets up its callbacks; None if there is none.

    Keras tells callbacks of their model and not of their list, whose order decides what comes last.
    """
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        found = frame.f_locals.get("self")
        if isinstance(found, keras.callbacks.CallbackList) and callback in found.callbacks:
            return found
        frame = frame.f_back
    return None


def files_of(callbacks: Iterable[Any]) -> list[str]:
    """Return the paths of files that callbacks of Keras write."""
    paths = [
        each.filepath if isinstance(each, keras.callbacks.ModelCheckpoint) else each.filename
        for each in callbacks
        if isinstance(each, (keras.callbacks.ModelCheckpoint, keras.callbacks.CSVLogger))
    ]
    return [str(Path(each).resolve()) for each in paths]


def refuse_common(run: Session, files: list[str], most: int) -> None:
    """Raise UsageError if several processes would write one file. `most` is the largest number of files."""
    if most == 0:
        return
    marks = [crc32(each.encode()) for each in files]
    mine = np.array([marks + [-1] * (most - len(marks))], np.int64)
    rows = backend().all_gather(run, mine, "files that callbacks write")
    of_ranks = [{mark for mark in row.tolist() if mark >= 0} for row in rows]
    for mark in set[int]().union(*of_ranks):
        ranks = [rank for rank, found in enumerate(of_ranks) if mark in found]
        if len(ranks) > 1:
            names = [file for file, of in zip(files, marks, strict=True) if of == mark]
            raise UsageError(
                f"callbacks of ranks {ranks} write one file{': ' if names else ''}{''.join(names[:1])}. Give "
                "rt.on_rank_0(callback) to all processes, or a path of its own to each"
            )
