# SPDX-License-Identifier: Apache-2.0
"""Some tests of torch's own suite; `make test SUITE=torch` runs all of them, with 2, 3 and 4 processes."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytorch.suite import compare
from pytorch.suite_source import check_version

TESTS = [
    "test_DistributedDataParallelCPU",
    "test_barrier_timeout_full_group",
    "test_ddp_logging_data_cpu",
    "test_monitored_barrier_gloo",
    "test_sparse_all_reduce_sum",
]


@pytest.mark.timeout(300)
def test_some_of_torchs_tests(tmp_path: Path) -> None:
    pytest.importorskip(
        "torch.distributed", reason="torch is not installed: pip install --group test"
    )
    verdict = compare(3, tmp_path, "|".join(TESTS))
    assert not verdict.wrong, verdict.wrong
    assert verdict.passed == len(TESTS)


def test_source_is_that_of_the_installed_torch(tmp_path: Path) -> None:
    """Else its tests would fail, and it would seem that we do."""
    with pytest.raises(ValueError, match=r"no clone of torch's repository"):
        check_version(tmp_path, "2.14.1+cpu")
    (tmp_path / "version.txt").write_text("2.14.1a0\n")
    check_version(tmp_path, "2.14.1+cpu")
    with pytest.raises(
        ValueError, match=r"torch 2.13.0\+cpu is installed: check out v2.13.0 there"
    ):
        check_version(tmp_path, "2.13.0+cpu")
