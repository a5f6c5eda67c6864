# SPDX-License-Identifier: Apache-2.0
"""A program of JAX for test_failures.py: `failures.py WAY TIMEOUT FOLDER`. Processes tell how they fail."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import rdmatensor.jax

rdmatensor.jax.use(timeout=float(sys.argv[2]))

import jax  # noqa: E402
import numpy as np  # noqa: E402
from jax.sharding import Mesh, NamedSharding  # noqa: E402
from jax.sharding import PartitionSpec as P  # noqa: E402

jax.distributed.initialize()
RANK = jax.process_index()


def total(devices: list[Any]) -> float:
    """The sum of 1, 10, 100 over the processes that have these devices."""
    mesh = Mesh(np.array(devices), ("x",))
    here = NamedSharding(mesh, P("x"))
    rows = 10.0 ** np.arange(len(devices), dtype=np.float32)
    mine = jax.make_array_from_callback(rows.shape, here, lambda index: rows[index])
    mapped = jax.shard_map(
        lambda v: jax.lax.psum(v, "x"), mesh=mesh, in_specs=P("x"), out_specs=P("x")
    )
    return float(np.asarray(jax.jit(mapped)(mine).addressable_shards[0].data)[0])


def failure(devices: list[Any]) -> None:
    """Tell with what text, and after how many seconds, the sum fails."""
    begun = time.monotonic()
    try:
        result = total(devices)
    except jax.errors.JaxRuntimeError as error:
        text = " ".join(str(error).split())
        print(f"{RANK} failed after {time.monotonic() - begun:.1f} s: {text}", flush=True)
    else:
        print(f"{RANK} has {result}", flush=True)


def reached(point: str) -> None:
    """Tell the other processes that this one has come to `point`."""
    Path(sys.argv[3], f"{point} {RANK}").touch()


def wait_for(point: str, *ranks: int) -> None:
    """Wait until these processes have come to `point`."""
    end = time.monotonic() + 60
    while not all(Path(sys.argv[3], f"{point} {rank}").exists() for rank in ranks):
        assert time.monotonic() < end
        time.sleep(0.05)


everybody = jax.devices()
assert total(everybody) == 111.0
reached("connected")
wait_for("connected", 0, 1, 2)  # a process that ends also fails a sum that others still take
if sys.argv[1] == "split":
    if RANK < 2:  # process 2 has no device of this program
        assert total(everybody[:2]) == 11.0
    if RANK == 0:  # process 2 takes no part in this one
        failure(everybody[::2])
        failure(everybody[::2])
        reached("failed")
    wait_for("failed", 0)
    assert total(everybody) == 111.0  # nothing is wrong with what was connected before
    print(f"{RANK} goes on", flush=True)
    sys.exit(0)
if RANK == 1 and sys.argv[1] == "kill":
    os.kill(os.getpid(), signal.SIGKILL)
if RANK == 1:
    raise ValueError("no more data")
failure(everybody)
failure(everybody)
reached("failed")
wait_for("failed", 0, 2)  # JAX ends a process whose coordinator, which is in process 0, is gone
sys.stdout.flush()
os._exit(0)  # JAX would wait for process 1
