# SPDX-License-Identifier: Apache-2.0
"""A member's end of the connection to its benchmark; team.py has the other end. It needs only Python."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Mapping
from multiprocessing.connection import Client
from typing import Any


def timed_values(call: Callable[[], Any], count: int) -> tuple[list[float], list[Any]]:
    """The seconds and the results of `count` calls. The times include about 0.05 us for the clock."""
    seconds, values = [], []
    for _ in range(count):
        begin = time.perf_counter()
        value = call()
        seconds.append(time.perf_counter() - begin)
        values.append(value)
    return seconds, values


def timed(call: Callable[[], object], count: int) -> list[float]:
    """The seconds of each of `count` calls."""
    times = []
    for _ in range(count):
        begin = time.perf_counter()
        call()
        times.append(time.perf_counter() - begin)
    return times


def serve(
    handlers: Mapping[str, Callable[..., Any]],
    rank: int | str = "",
    close: Callable[[], object] = lambda: None,
) -> None:
    """Say "ready", answer commands with the handlers of their names, and exit when the benchmark hangs up.

    Give `rank` where it is not in the address, as under mpirun. What libraries print goes to the log. There
    are no finalisers but `close`, because TensorFlow's threads would outlive them.
    """
    with Client(os.environ["BENCH_ADDRESS"] + str(rank)) as line:
        line.send("ready")
        while True:
            try:
                command, fields = line.recv()
            except EOFError:
                break
            line.send(handlers[command](**fields))
    close()
    sys.stderr.flush()
    os._exit(0)


def serve_steps(
    make: Callable[..., Callable[[], object]],
    before: Callable[[], object] = lambda: None,
    rank: int | str = "",
    close: Callable[[], object] = lambda: None,
    **handlers: Callable[..., Any],
) -> None:
    """Serve "steps": the seconds of `count` steps of what `make` makes of the other fields, which it keeps.

    All members call `before` before their steps begin. The rest is as for `serve`.
    """
    made: dict[str, Callable[[], object]] = {}

    def steps(count: int, **fields: Any) -> list[float]:
        key = repr(fields)
        if key not in made:
            made[key] = make(**fields)
        before()
        return timed(made[key], count)

    serve({"steps": steps, **handlers}, rank, close)
