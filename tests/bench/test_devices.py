# SPDX-License-Identifier: Apache-2.0
"""The copies with which steps between devices are compared move the bytes of a step twice."""

from __future__ import annotations

from bench_tensorflow import Copies
from harness import Bench
from record import Environment, Run
from tf_cases import KIB, between_devices
from tf_measure import compare


def test_both_copies_are_made_in_each_step() -> None:
    bench, copies = Bench(Run("steps", Environment.here()), quick=True), Copies()
    for count in (3, 1):
        before = copies.carried_bytes
        compare(bench, "suite", [copies], between_devices(count, 64 * KIB))
        samples = bench.run.results.pop().samples
        assert len(samples) == 100 and min(samples) > 0
        assert bench.run.faults == []
        # Blocks of five steps, of which the first is not timed; two blocks warm up.
        assert copies.carried_bytes - before == (20 * 6 + 11) * count * 64 * KIB
        assert copies.ask("close") == {}
