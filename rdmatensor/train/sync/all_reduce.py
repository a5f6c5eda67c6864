# SPDX-License-Identifier: Apache-2.0
"""Synchronous training: every process applies the mean of all gradients."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from ...errors import UsageError
from ..backend.base import backend
from ..run.membership import Membership
from .base import Gradients


@dataclass(eq=False)
class AllReduce(Gradients):
    """Train synchronously: every process applies the mean of all gradients, so all models stay equal.

    `bucket_bytes` is the size up to which gradients travel together; "auto" takes it from what the group
    measured when it was joined. `compression` is the type in which float32 gradients travel; None sends them
    as they are. TopK, PowerSGD and Quantized send much less.
    """

    bucket_bytes: int | Literal["auto"] = "auto"
    compression: Literal["float16", "bfloat16"] | None = None
    averages = True

    def __post_init__(self) -> None:
        check_bucket_bytes(self.bucket_bytes)
        if self.compression not in (None, "float16", "bfloat16"):
            raise UsageError(
                f'AllReduce(compression={self.compression!r}): give "float16" or "bfloat16". TopK(0.01), '
                "PowerSGD(4) and Quantized() take the place of AllReduce"
            )

    def gradients(self, members: Membership, gradients: Sequence[Any], name: str) -> Sequence[Any]:
        """Return the mean of each gradient."""
        return backend().mean(
            members, gradients, self.bucket_bytes, self.compression, name, self.names
        )


def check_bucket_bytes(wanted: Any) -> None:
    """Raise UsageError if it is no size of buckets."""
    if wanted != "auto" and (isinstance(wanted, bool) or not isinstance(wanted, int) or wanted < 1):
        raise UsageError(f'bucket_bytes is {wanted!r}: give a number of bytes, or "auto"')
