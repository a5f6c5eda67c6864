# SPDX-License-Identifier: Apache-2.0
"""Tell what training cost: counters of this process, a trace of some steps, and a table of all processes."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from .._api import training
from .._api.training import LateCosts, OperationCosts, TrainStats
from .._tools import tracing
from ..errors import UsageError
from ..units import size as size_text
from .run.session import current

__all__ = ["LateCosts", "OperationCosts", "Row", "TrainStats", "statistics", "table", "trace"]


def statistics() -> TrainStats:
    """Return what the operations of this process cost since init().

    In a program of torch that does not call init(), they are those of the default process group, if its
    backend is rdmatensor, from the first call of this function on; bytes sent and copied are all of them.
    Raises UsageError if the process is alone, or did not call init().
    """
    try:
        _ = current().handle  # from then on, operations are counted
    except UsageError:
        group = training.default_group()
        if group is None:
            raise
        training.count(group)
    found = training.stats()
    if found is None:
        raise UsageError(
            "this process is in no group: there are statistics after init(), with more than one"
        )
    return found


@contextlib.contextmanager
def trace(path: str | os.PathLike[str]) -> Iterator[None]:
    """Write what happens within the block to `path`, in Chrome's trace format (JSON).

        with rt.trace("rank0.json"):
            model.train_on_batch(x, y)

    Each bucket of gradients has a row: `fill` (copying into it), `late` (until the last process has begun),
    `reduce`, and `finish` (until TensorFlow goes on). The other rows are TensorFlow's threads with the
    operations that they compute. Open it with https://ui.perfetto.dev. Occupies TensorFlow's profiler.

    Raises UsageError if a profile is being taken already.
    """
    with tracing.trace(path, computation=True):
        yield


class Row(NamedTuple):
    """The work of one process in fit()."""

    steps: float
    examples: float
    """0: unknown."""
    seconds: float
    sent_bytes: float
    exposed_seconds: float
    waited_seconds: float


def table(rows: Sequence[Row], late: Sequence[Sequence[float]]) -> str:
    """Return the rows of all processes as text. `late[i][j]` is how many seconds rank i waited for rank j."""
    headings = ("rank", "steps", "examples/s", "sent", "exposed", "waited", "waited for by others")
    lines: list[Sequence[str]] = [headings]
    for rank, row in enumerate(rows):
        others = sum(each[rank] for i, each in enumerate(late) if i != rank)
        lines.append(
            (
                str(rank),
                f"{row.steps:.0f}",
                f"{row.examples / row.seconds:.0f}" if row.examples and row.seconds else "-",
                size_text(row.sent_bytes),
                _share(row.exposed_seconds, row.seconds),
                _share(row.waited_seconds, row.seconds),
                f"{others:.2f} s",
            )
        )
    widths = [max(len(line[i]) for line in lines) for i in range(len(headings))]
    return "\n".join(
        "  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True))
        for line in lines
    )


def _share(seconds: float, of: float) -> str:
    return f"{seconds:.2f} s ({100 * seconds / of:.0f} %)" if of else "-"


def numbers(found: TrainStats) -> list[float]:
    """Return the fields of a Row that the group counts, and the seconds waited for each rank."""
    late = [each["waited_seconds"] for each in found["late"]]
    return [found["sent_bytes"], found["exposed_seconds"], found["waited_seconds"], *late]


def differences(now: Any, before: Any) -> list[float]:
    """Return by how much each number has grown."""
    return [a - b for a, b in zip(now, before, strict=True)]
