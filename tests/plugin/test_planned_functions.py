# SPDX-License-Identifier: Apache-2.0
"""Functions of TensorFlow 2: the task that did not make them learns the plan through their attributes."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

from plugin.planned_functions import SHAPES, STEPS
from support import warm


def test_traced_for_several_shapes() -> None:
    run = subprocess.run(
        [warm.python(), Path(__file__).with_name("planned_functions.py")],
        capture_output=True,
        text=True,
        timeout=150,
    )
    assert run.returncode == 0, run.stderr[-4000:]
    said = json.loads(run.stdout.splitlines()[-1])
    expected = [3.0 + number for number in range(len(SHAPES) * (2 + STEPS))]
    assert said["results"] == [[value, value] for value in expected]

    places = []
    for size, tasks in zip(SHAPES, said["phases"], strict=True):
        for stats in tasks:
            sent = {path: counters["sent_bytes"] for path, counters in stats["paths"].items()}
            # To the worker and back. Results that Python reads are fetched one by one, unplanned.
            assert sent["static"] >= STEPS * 4 * size
            assert sum(sent.values()) - sent["static"] < STEPS * 100
            assert stats["plan"]["mismatched"] == 0
        places.append(tasks[0]["plan"]["place_bytes"])
    first, second, third, again = places
    assert first < second < third == again, "a shape is planned once"
    assert said["left"][0]["plan"]["place_bytes"] == 0, "the plan of a forgotten function stays"
