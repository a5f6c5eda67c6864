# SPDX-License-Identifier: Apache-2.0
"""What rdmatensor.train.statistics() tells of the default process group, in programs without Keras."""

from __future__ import annotations

import pytest

from pytorch.conftest import Make


def test_operations_of_the_default_process_group(ranks: Make) -> None:
    """Calls that wait, and started ones, count from the first call of statistics() on."""
    two = ranks(2)
    two.run("""
        import sys
        import rdmatensor.train as rt
        dist.all_reduce(torch.ones(1000))
        before = rt.statistics()
        assert (before["rank"], before["size"], before["operations"]) == (rank, 2, {})
        assert before["sent_bytes"] > 0
        for _ in range(3):
            dist.all_reduce(torch.ones(1000))
        work = dist.broadcast(torch.ones(10), 0, async_op=True)
        if rank == 1:
            time.sleep(0.1)
        late = dist.all_reduce(torch.ones(2000), async_op=True)
        work.wait()
        late.wait()
        late.wait()
        found = rt.statistics()
    """)
    found = two.get("found")
    for each in found:
        sums, copies = each["operations"]["all_reduce"], each["operations"]["broadcast"]
        assert (sums["operations"], sums["failed"], sums["bytes"]) == (4, 0, 3 * 4000 + 8000)
        assert (copies["operations"], copies["bytes"]) == (1, 40)
        assert 0 < sums["longest_seconds"] <= sums["seconds"]
        assert 0 < each["exposed_seconds"] <= each["busy_seconds"]
        assert each["sent_bytes"] > 0
    assert found[0]["late"][1]["waited_seconds"] >= 0.09
    assert found[0]["operations"]["all_reduce"]["waited_seconds"] >= 0.09
    assert two.get("'keras' in sys.modules or 'tensorflow' in sys.modules") == [False, False]


def test_failures_are_counted(ranks: Make) -> None:
    two = ranks(2)
    two.run("""
        import rdmatensor.train as rt
        rt.statistics()
        for async_op in (False, True):
            try:
                work = dist.all_reduce(torch.ones(1 + rank), async_op=async_op)
                work.wait()
            except dist.DistBackendError:
                pass
        failed = rt.statistics()["operations"]["all_reduce"]
    """)
    assert [(each["operations"], each["failed"]) for each in two.get("failed")] == [(0, 2)] * 2


def test_without_such_a_process_group(ranks: Make) -> None:
    one = ranks(1, backend="gloo")
    with pytest.raises(Exception, match=r"call rdmatensor\.train\.init\(\) first"):
        one.run("import rdmatensor.train as rt; rt.statistics()")
