# SPDX-License-Identifier: Apache-2.0
"""What the workers of the collective tests put in, and what must come out."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]


def numpy_dtype(name: str) -> npt.DTypeLike:
    """The type called `name`, of numpy or beside it."""
    return ml_dtypes.bfloat16 if name == "bfloat16" else np.dtype(name)


def value(member: int, dtype: str, shape: list[int], seed: int) -> Array:
    """The input of a member: different for each, and of both signs."""
    random = np.random.default_rng([seed, member])
    if dtype == "bool":
        return random.integers(0, 2, size=shape).astype(bool)
    if np.issubdtype(numpy_dtype(dtype), np.integer):
        return random.integers(-50, 50, size=shape).astype(dtype)
    return random.normal(size=shape).astype(numpy_dtype(dtype))


def expected(kind: str, inputs: list[Array], rank: int, reduction: str = "Add") -> Array:
    """What the member of `rank` must get; sums are made in double precision."""
    if kind == "all_gather":
        return np.concatenate(inputs)
    if kind == "broadcast":
        return inputs[0]
    if kind == "all_to_all":
        return np.concatenate([np.split(each, len(inputs))[rank] for each in inputs])
    wide = np.int64 if np.issubdtype(inputs[0].dtype, np.integer) else np.float64
    combine = {"Add": np.add, "Mul": np.multiply, "Min": np.minimum, "Max": np.maximum}[reduction]
    total: Array = combine.reduce([each.astype(wide) for each in inputs])
    return np.split(total, len(inputs))[rank] if kind == "reduce_scatter" else total
