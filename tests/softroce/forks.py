# SPDX-License-Identifier: Apache-2.0
"""Processes that are forked from one that has imported TensorFlow and done nothing with it yet: in a guest
the import takes most of a minute."""

from __future__ import annotations

import json
import os
import traceback
from collections.abc import Callable
from typing import Any


def _fork(work: Callable[[int], Any], index: int) -> int:
    """Starts a process; the descriptor from which its result can be read."""
    line, end = os.pipe()
    if os.fork() == 0:
        try:
            with os.fdopen(end, "w") as file:
                json.dump(work(index), file)
            os._exit(0)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
    os.close(end)
    return line


def in_forks(work: Callable[[int], Any], count: int) -> list[Any]:
    """What work(0), work(1), ... return, each in a process of its own. SystemExit if one fails."""
    lines = [_fork(work, index) for index in range(count)]
    results = []
    for line in lines:
        with os.fdopen(line) as file:
            results.append(file.read())
    if any(os.wait()[1] for _ in lines):
        raise SystemExit("a process failed")
    return [json.loads(result) for result in results]
