# SPDX-License-Identifier: Apache-2.0
"""Divide gradients into buckets, whose tensors travel together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from ..run.membership import Membership

# A bucket's messages cost as much as this share of its bytes, at most; but see _SMALLEST and _LARGEST.
_OVERHEAD = 0.05
_SMALLEST, _LARGEST = 256 << 10, 32 << 20
# To copy so many bytes costs more than another operation.
_ALONE = 256 << 10


def bucket_bytes_of(run: Membership, wanted: int | Literal["auto"]) -> int:
    """Return the size of buckets in bytes.

    "auto" takes it from the group's costs, which all processes share.
    """
    if wanted != "auto":
        return wanted
    assert run.group is not None
    info = run.group.info
    between = 1 if info.hosts > 1 else 0
    per_byte = max(info.byte_ns[between], 1e-3)
    return int(
        min(max(info.latency_ns[between] * run.size / per_byte / _OVERHEAD, _SMALLEST), _LARGEST)
    )


def buckets_of(sized: Sequence[tuple[int, Any, int]], limit: int) -> list[list[int]]:
    """Group tensors, given by number, type and bytes, in their order; each group has one type.

    A large tensor is alone: it travels from where it lies, while those of a group are copied together. The
    group that is complete first comes first, because operations start in the order of the program.
    """
    places = {number: place for place, (number, _, _) in enumerate(sized)}
    buckets: list[list[int]] = []
    open_buckets: dict[Any, tuple[list[int], int]] = {}
    for number, dtype, size in sized:
        if size >= _ALONE:
            buckets.append([number])
            continue
        bucket, filled = open_buckets.get(dtype, ([], 0))
        if not bucket or filled + size > limit:
            bucket, filled = [], 0
            buckets.append(bucket)
        bucket.append(number)
        open_buckets[dtype] = (bucket, filled + size)
    return sorted(buckets, key=lambda bucket: places[bucket[-1]])
