# SPDX-License-Identifier: Apache-2.0
"""Some tests of torch's own suite; `make test SUITE=torch` runs all of them, with 2, 3 and 4 processes."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytorch.suite import compare

TESTS = [
    "test_DistributedDataParallelCPU",
    "test_all_gather_coalesced_simple",
    "test_all_reduce_sum_async",
    "test_barrier_timeout_full_group",
    "test_ddp_logging_data_cpu",
    "test_monitored_barrier_gloo",
    "test_send_recv_any_source_torch_profiler",
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
