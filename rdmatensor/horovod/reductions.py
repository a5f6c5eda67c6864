# SPDX-License-Identifier: Apache-2.0
"""What an all-reduce combines, by Horovod's names, and Horovod's errors."""

from __future__ import annotations

from enum import IntEnum

from ..errors import UsageError


class HorovodInternalError(RuntimeError):
    """Say that an operation failed here and at others: elastic programs go back to their last state."""


class HostsUpdatedInterrupt(Exception):
    """Say that members join or leave: elastic programs go on with their present state."""


class ReduceOp(IntEnum):
    """What an all-reduce combines. The numbers are Horovod's."""

    AVERAGE = 0
    SUM = 1
    ADASUM = 2
    MIN = 3
    MAX = 4
    PRODUCT = 5


Average = ReduceOp.AVERAGE
Sum = ReduceOp.SUM
Adasum = ReduceOp.ADASUM
Min = ReduceOp.MIN
Max = ReduceOp.MAX
Product = ReduceOp.PRODUCT


def chosen(average: bool | None, op: int | None) -> ReduceOp:
    """Return the reduction that the two arguments mean, of which Horovod's older programs give `average`.

    UsageError: both are given.
    """
    if average is not None and op is not None:
        raise UsageError("give op or average, not both: average=True is op=Average")
    if average is not None:
        return Average if average else Sum
    return Average if op is None else ReduceOp(op)
