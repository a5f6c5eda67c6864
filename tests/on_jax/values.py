# SPDX-License-Identifier: Apache-2.0
"""A program of JAX for test_programs.py: each process compares what collective operations give with numpy."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils
from jax.lax import all_gather, all_to_all, pmax, pmean, pmin, ppermute, psum, psum_scatter
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

jax.config.update("jax_enable_x64", True)
jax.distributed.initialize()
SIZE, RANK = jax.process_count(), jax.process_index()
MESH = Mesh(np.array(jax.devices()), ("x",))
ROWS = P("x")
Function = Callable[[Any], Any]


def start(function: Function, rows: Any, mesh: Mesh = MESH, spec: P = ROWS) -> Any:
    """Apply the function to each process's row of `rows`."""
    here = NamedSharding(mesh, spec)
    mine = jax.make_array_from_callback(rows.shape, here, lambda index: rows[index])
    mapped = jax.shard_map(function, mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False)
    return jax.jit(mapped)(mine)


def check(name: str, results: Any, *expected: Any) -> None:
    """Compare the parts of results that are here. Sums of floats may differ in their last bits."""
    results = results if isinstance(results, tuple) else (results,)
    for number, (result, whole) in enumerate(zip(results, expected, strict=True)):
        (shard,) = result.addressable_shards
        got, wanted = np.asarray(shard.data), np.asarray(whole)[shard.index]
        assert got.dtype == wanted.dtype, (name, got.dtype, wanted.dtype)
        if got.dtype.kind not in "iufcb":  # bfloat16 and other types of ml_dtypes
            got, wanted = got.astype(np.float32), wanted.astype(np.float32)
        np.testing.assert_allclose(got, wanted, rtol=1e-6, err_msg=f"{name} {number} at {RANK}")


def everywhere(row: Any) -> Any:
    return np.broadcast_to(row, (SIZE, *row.shape))


def rows_of(dtype: Any, count: int = 6) -> Any:
    numbers = np.random.default_rng(7).integers(1, 5, (SIZE, count))
    if np.dtype(dtype).kind == "c":
        return (numbers + 1j * np.roll(numbers, 1)).astype(dtype)
    return numbers.astype(dtype)


def reductions() -> None:
    complex_ones = ["c8", "c16"]
    kinds = ["f4", "f8", "i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8"]
    for dtype in complex_ones + kinds if SIZE == 2 else ["c8", "f4", "i4"]:
        rows = rows_of(dtype)
        total = everywhere(rows.sum(0, rows.dtype))
        if dtype in complex_ones:
            check(dtype, start(lambda v: psum(v, "x"), rows), total)
            continue
        results = start(lambda v: (psum(v, "x"), pmax(v, "x"), pmin(v, "x")), rows)
        check(dtype, results, total, everywhere(rows.max(0)), everywhere(rows.min(0)))
    rows = rows_of("f4")
    check("pmean", start(lambda v: pmean(v, "x"), rows), everywhere(rows.mean(0)))
    rows = rows_of(jnp.bfloat16)
    total = everywhere(rows.astype("f4").sum(0).astype(jnp.bfloat16))
    check("bfloat16", start(lambda v: psum(v, "x"), rows), total)
    rows = rows_of("f4", 1)
    rows[SIZE - 1] = np.nan
    check("NaN", start(lambda v: pmax(v, "x"), rows), everywhere(rows[SIZE - 1]))
    large = np.random.default_rng(3).integers(-1000, 1000, (SIZE, 300_000)).astype("f4")
    check("large", start(lambda v: psum(v, "x"), large), everywhere(large.sum(0)))


def movements() -> None:
    ring = [(each, (each + 1) % SIZE) for each in range(SIZE)]

    def move(v: Any) -> Any:
        return all_to_all(v, "x", 1, 1, tiled=True), ppermute(v, "x", ring)

    def join(v: Any) -> Any:
        return (
            all_gather(v, "x", axis=1, tiled=True),
            psum_scatter(v, "x", scatter_dimension=1, tiled=True),
        )

    for dtype in ("f4", "c8", "u1"):
        rows = rows_of(dtype, 2 * SIZE)
        parts = rows.sum(0, rows.dtype).reshape(SIZE, 2)
        check(f"join {dtype}", start(join, rows), everywhere(rows.ravel()), parts)
    for dtype in ("f4", jnp.bfloat16, "f2", "?"):
        rows = rows_of(dtype, 2 * SIZE)
        exchanged = rows.reshape(SIZE, SIZE, 2).swapaxes(0, 1).reshape(SIZE, 2 * SIZE)
        check(f"move {dtype}", start(move, rows), exchanged, np.roll(rows, 1, 0))
    rows = rows_of("f4")
    only = start(lambda v: ppermute(v, "x", [(0, SIZE - 1)]), rows)  # others get zeros
    check("ppermute of one", only, np.pad(rows[:1], ((SIZE - 1, 0), (0, 0))))


def several_programs() -> None:
    """Programs that nobody has waited for, and one with many operations."""
    rows = rows_of("f4", 1000)

    def scaled(factor: int) -> Function:
        return lambda v: psum(v * factor, "x") - pmax(v, "x")

    started = [start(scaled(factor), rows) for factor in range(4)]
    for factor, result in enumerate(started):
        total = rows.sum(0) * np.float32(factor) - rows.max(0)
        check(f"program {factor}", result, everywhere(total))

    def many(v: Any) -> Any:
        for _ in range(10):
            v = psum(v, "x") / SIZE + ppermute(v, "x", [(i, i ^ 1) for i in range(SIZE)]) * 0
        return v

    check("many operations", start(many, rows), everywhere(rows.mean(0)))


def parts_of_the_mesh() -> None:
    """Cliques of two, in rows and columns, and of all."""
    mesh = Mesh(np.array(jax.devices()).reshape(2, 2), ("x", "y"))
    cells = rows_of("f4", 2).reshape(2, 2, 1, 2)  # a cell of each process

    def sums(v: Any) -> Any:
        return psum(v, "x"), psum(v, "y"), psum(v, ("x", "y")), all_gather(v, "y")[1]

    wanted = [cells.sum(axis, keepdims=True) for axis in (0, 1, (0, 1))] + [cells[:, 1:]]
    whole = [np.broadcast_to(each, cells.shape) for each in wanted]
    check("mesh", start(sums, cells, mesh, P("x", "y")), *whole)


def _sum_and_move(move: Function, v: Any) -> Any:
    return psum(v, "x"), move(v)


def some_of_the_processes() -> None:
    """Programs of which other processes know nothing: they go on with the next one."""
    devices = jax.devices()
    for some in [[1], [0, 1], [2, 1, 3], [3, 0], list(range(SIZE))]:
        if max(some) < SIZE and RANK in some:
            mesh = Mesh(np.array([devices[each] for each in some]), ("x",))
            rows = rows_of("f4", 6)[some]
            ring = [(each, (each + 1) % len(some)) for each in range(len(some))]
            moves = partial(ppermute, axis_name="x", perm=ring)
            results = start(partial(_sum_and_move, moves), rows, mesh)
            total = np.broadcast_to(rows.sum(0), rows.shape)
            check(f"processes {some}", results, total, np.roll(rows, 1, 0))


def utilities() -> None:
    ranks = multihost_utils.process_allgather(np.array([RANK]))
    assert ranks.ravel().tolist() == list(range(SIZE)), ranks
    told = multihost_utils.broadcast_one_to_all(np.array([RANK + 5.5, 2.0]))
    assert told.tolist() == [5.5, 2.0], told
    multihost_utils.sync_global_devices("here")


def unsupported() -> None:
    """XLA refuses to add up float16, and what comes afterwards works."""
    try:
        start(lambda v: psum(v, "x"), rows_of("f2")).block_until_ready()
    except jax.errors.JaxRuntimeError as error:
        assert "Unsupported primitive type for reduction: f16" in str(error), error
    else:
        raise AssertionError("docs/jax.md says that XLA cannot do this")


for step in (
    some_of_the_processes,
    reductions,
    movements,
    several_programs,
    unsupported,
    utilities,
):
    step()
if SIZE == 4:
    parts_of_the_mesh()
# Nobody waits for this one: leaving must not take it from the others.
start(lambda v: psum(v, "x"), rows_of("f4", 1_000_000))
print(f"process {RANK} of {SIZE} has compared everything")
