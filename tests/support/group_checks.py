# SPDX-License-Identifier: Apache-2.0
"""What members of a group do in test_group.py: operations whose result numpy knows."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from itertools import product
from typing import Any

import numpy as np

import rdmatensor
from rdmatensor import Tree

Array = np.ndarray[Any, np.dtype[Any]]
Make = Callable[..., Array]

REDUCTIONS: dict[str, Callable[[Array, Array], Array]] = {
    "sum": np.add,
    "product": np.multiply,
    "min": np.minimum,
    "max": np.maximum,
}
LEAST_REGISTERED = 10000
ALGORITHMS = ("auto", "flat", "halving", "ring", "direct", "hierarchical", "trees")
TREE_KINDS: tuple[rdmatensor.Kind, ...] = (
    "all_reduce",
    "broadcast",
    "all_gather",
    "reduce_scatter",
)
DTYPES = [f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)]
DTYPES += ["float16", "float32", "float64", "bfloat16"]


def dtype_of(name: str) -> Any:
    if name != "bfloat16":
        return np.dtype(name)
    import ml_dtypes

    return np.dtype(ml_dtypes.bfloat16)


def values(rank: int, count: int, dtype: Any) -> Array:
    """1, 2 or 3: sums and products of a few members are exact in every dtype and order."""
    return ((np.arange(count) * 5 + rank * 3 + np.arange(count) // 7) % 3 + 1).astype(dtype)


def expected(kind: str, inputs: list[Array], rank: int, op: str, root: int) -> Array:
    size = len(inputs)
    if kind == "broadcast":
        return inputs[root]
    if kind == "all_gather":
        return np.concatenate(inputs)
    if kind == "all_to_all":
        return np.concatenate([np.split(each, size)[rank] for each in inputs])
    total = reduce(REDUCTIONS[op], inputs).astype(inputs[0].dtype)
    return total if kind == "all_reduce" else np.split(total, size)[rank]


def forms(kind: str) -> tuple[str, ...]:
    if kind == "broadcast":
        return ("in place",)
    return ("new", "out", "in place") if kind in ("all_reduce", "all_gather") else ("new", "out")


def run(group: Any, kind: str, array: Array, form: str, make: Make, **options: Any) -> Array:
    """Calls the method that `kind` names, with `out` as `form` tells."""
    method = getattr(group, kind)
    if form == "new" or kind == "broadcast":
        return method(array, **options)
    if form == "in place" and kind == "all_gather":
        out = make(group.size * array.size, array.dtype)
        part = out[group.rank * array.size :][: array.size]
        part[:] = array
        array = part
    elif form == "in place":
        out = array
    else:
        count = {"all_gather": array.size * group.size, "reduce_scatter": array.size // group.size}
        out = make(count.get(kind, array.size), array.dtype)
    assert method(array, out, **options) is out
    return out


class Arena:
    """Registered memory to use again and again: registering costs more than most operations."""

    BYTES = 1 << 20

    def __init__(self, group: Any) -> None:
        self._group = group
        self._bytes = group.empty(self.BYTES, np.uint8)
        self.at = 0

    def take(self, count: int, dtype: Any) -> Array:
        nbytes = count * np.dtype(dtype).itemsize
        begin, self.at = self.at, self.at + -(-nbytes // 64) * 64
        if self.at > self.BYTES:
            return self._group.empty(count, dtype)
        return self._bytes[begin:][:nbytes].view(dtype)


arenas: dict[Any, Arena] = {}  # by group


def memory(group: Any, registered: bool) -> Make:
    """What makes the arrays of one operation."""
    if not registered:
        return np.zeros
    arena = arenas.get(group) or arenas.setdefault(group, Arena(group))
    arena.at = 0
    return arena.take


def check(
    group: Any, kind: str, dtype: str, count: int, form: str, registered: bool, **options: Any
) -> None:
    """One operation, compared with numpy element by element; inputs stay as they were."""
    make = memory(group, registered)
    inputs = [values(rank, count, dtype_of(dtype)) for rank in range(group.size)]
    array = make(count, dtype_of(dtype))
    array[:] = inputs[group.rank]
    right = expected(kind, inputs, group.rank, options.get("op", "sum"), options.get("root", 0))
    result = run(group, kind, array, form, make, **options)
    what = f"{kind} of {count} {dtype}, {form}, {registered=}, {options}, rank {group.rank}"
    assert result.dtype == right.dtype and result.size == right.size, what
    wrong = np.flatnonzero(result != right)
    assert not wrong.size, f"{what}: wrong at {wrong[:5]}: {result[wrong[:5]]}"
    if form in ("new", "out"):
        assert np.array_equal(array, inputs[group.rank]), f"{what}: the input was changed"


def check_kinds(group: Any, counts: tuple[int, ...], algorithms: tuple[str, ...]) -> None:
    for kind, each, algorithm, registered in product(
        ("all_reduce", "all_gather", "broadcast", "reduce_scatter", "all_to_all"),
        counts,
        algorithms,
        (False, True),
    ):
        if registered and each < LEAST_REGISTERED:
            continue  # short messages do not care where they come from
        count = each * group.size if kind in ("reduce_scatter", "all_to_all") else each
        root = {"root": group.size - 1} if kind == "broadcast" else {}
        for form in forms(kind):
            check(group, kind, "float32", count, form, registered, algorithm=algorithm, **root)


def random_trees(size: int, seed: int) -> list[Tree]:
    """For every kind, one or two trees from each root. Equal seeds give equal trees."""
    random = np.random.default_rng(seed)
    trees = []
    for kind, root in product(TREE_KINDS, range(size)):
        for _ in range(random.integers(1, 3)):
            order = [root, *(each for each in random.permutation(size).tolist() if each != root)]
            parents = [root] * size
            for place in range(1, size):
                parents[order[place]] = order[random.integers(place)]
            rate = int(random.integers(1, 100)) * 10**7
            trees.append(Tree(kind, root, rate, tuple(parents)))
    return trees


def check_dtypes(group: Any, count: int) -> None:
    for dtype, op in product(DTYPES, REDUCTIONS):
        check(group, "all_reduce", dtype, count, "in place", False, op=op)
    for dtype in DTYPES:
        check(group, "reduce_scatter", dtype, count * group.size, "new", False, op="max")


def gradients(group: Any, count: int) -> Array:
    """Numbers whose sum depends on the order, as real ones."""
    return np.random.default_rng(group.rank).standard_normal(count).astype(np.float32)


def in_threads(calls: list[Callable[[], Any]]) -> list[Any]:
    """What each call returned or raised, each from a thread of its own."""
    from concurrent.futures import ThreadPoolExecutor

    def outcome(call: Callable[[], Any]) -> Any:
        try:
            return call()
        except rdmatensor.RdmaError as error:
            return error

    with ThreadPoolExecutor(len(calls)) as pool:
        return list(pool.map(outcome, calls))


def result_of(call: Callable[[], Any]) -> tuple[str, str]:
    """The class and text of what a call raises, or nothing."""
    try:
        return failure(call)
    except AssertionError:
        return "", ""


def failure(call: Callable[[], Any]) -> tuple[str, str]:
    """The class and text of what a call raises."""
    try:
        call()
    except rdmatensor.RdmaError as error:
        return type(error).__name__, str(error)
    raise AssertionError("nothing was raised")
