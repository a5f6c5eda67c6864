# SPDX-License-Identifier: Apache-2.0
"""Eager operations while the way is cut and heals: failback_client.py CLUSTER_JSON PROTOCOL CUT_FILE.

All copies of a client belong to one step of TensorFlow's, which never ends: a loss must not outlive the
operations that it hit. Prints, as JSON, what it counted.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import tensorflow as tf

import rdmatensor.tensorflow
from plugin.remote_client import around, connect

LIMIT_S = 30.0


def works(number: int) -> bool:
    """Small and large tensors to both tasks and back; False if a connection was lost meanwhile."""
    try:
        for size in (10, 100_000):
            sent = np.full(size, number, "f")
            np.testing.assert_array_equal(around(sent), sent)
    except (tf.errors.UnavailableError, tf.errors.AbortedError, tf.errors.CancelledError):
        return False
    return True


def repeat(until: Callable[[], bool]) -> int:
    """Makes operations until that holds and they work; how many failed."""
    end = time.monotonic() + LIMIT_S
    failed = number = 0
    while True:
        number += 1
        fine = works(number)
        failed += not fine
        if fine and until():
            return failed
        assert time.monotonic() < end, rdmatensor.tensorflow.peers()


def states() -> set[str]:
    """How this process receives."""
    return {p["state"] for p in rdmatensor.tensorflow.peers() if p["direction"] == "receive"}


def main() -> None:
    """See the module."""
    cut = Path(sys.argv[3])
    connect()
    before = repeat(lambda: states() == {"ready"})
    cut.touch()
    during = repeat(lambda: states() == {"rpc"})
    cut.unlink()
    after = repeat(lambda: states() == {"ready"})
    stats = rdmatensor.tensorflow.stats()
    print(json.dumps({"failed": [before, during, after], "failbacks": stats["failbacks"]}))
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
