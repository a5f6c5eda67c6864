# SPDX-License-Identifier: Apache-2.0
"""Read files in rank 0 alone, on behalf of all processes."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ....errors import UsageError
from ...run.session import Session
from . import operations


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
