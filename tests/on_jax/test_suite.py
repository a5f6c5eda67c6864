# SPDX-License-Identifier: Apache-2.0
"""What compares JAX's own tests on gloo and on rdmatensor; `make test SUITE=jax` runs them."""

from __future__ import annotations

from pathlib import Path

import pytest

from on_jax.suite import compare

pytest.importorskip("jax", reason="jax is not installed: pip install --group test")
TESTS = """
import jax
from jax._src.test_multiprocess import MultiProcessTest
from jax.experimental import multihost_utils

class MadeTest(MultiProcessTest):
    def test_on_both(self):
        multihost_utils.sync_global_devices("here")

    def test_on_neither(self):
        self.fail()

    def test_on_gloo_only(self):
        self.assertEqual(jax.config.jax_cpu_collectives_implementation, "gloo")

    def test_skipped(self):
        self.skipTest("why")
"""


@pytest.mark.long
@pytest.mark.timeout(300)
def test_what_fails_on_ours_only_is_wrong(tmp_path: Path) -> None:
    file = tmp_path / "made_test.py"
    file.write_text(TESTS)
    verdict = compare(2, file, tmp_path)
    assert (verdict.passed, verdict.skipped, verdict.different) == (1, 1, {}), verdict
    assert list(verdict.wrong) == ["MadeTest.test_on_gloo_only"], verdict
