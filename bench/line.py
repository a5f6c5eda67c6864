# SPDX-License-Identifier: Apache-2.0
"""A member's end of the connection to its benchmark; team.py has the other end. It needs only Python."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from multiprocessing.connection import Client
from typing import Any


def serve(handlers: Mapping[str, Callable[..., Any]], rank: int | str = "") -> None:
    """Say "ready", and answer commands, whose names are those of `handlers`, until the benchmark hangs up.

    Give `rank` where it is not in the address, as under mpirun. What libraries print goes to the log.
    """
    with Client(os.environ["BENCH_ADDRESS"] + str(rank)) as line:
        line.send("ready")
        while True:
            try:
                command, fields = line.recv()
            except EOFError:
                return
            line.send(handlers[command](**fields))


def leave() -> None:
    """Exit without finalisers, because TensorFlow's threads would outlive them."""
    sys.stderr.flush()
    os._exit(0)
