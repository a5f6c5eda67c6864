# SPDX-License-Identifier: Apache-2.0
"""What goes wrong ends in an error that says who and why, and never in a hang."""

from __future__ import annotations

from collections.abc import Callable

from pytorch.ranks import Ranks

Make = Callable[..., Ranks]


def test_killed_member(ranks: Make) -> None:
    three = ranks(3)
    for rank in (0, 1):
        three[rank].start(
            "text = checks.fails(lambda: [dist.all_reduce(torch.ones(9)) for _ in range(1 << 30)])"
        )
    three[2].run("dist.all_reduce(torch.ones(9))")
    three[2].kill()
    for rank in (0, 1):
        three[rank].finish()
        text = three[rank].get("text")
        assert "all_reduce, operation 2" in text and "member 2" in text, text
    # What waits in a future hears of it too.
    texts = three.get(
        "checks.fails(lambda: dist.all_reduce(torch.ones(9), async_op=True).get_future().wait())",
        [0, 1],
    )
    assert all("member 2" in text for text in texts), texts


def test_stopped_member(ranks: Make) -> None:
    three = ranks(3, timeout=2)
    three[2].stop()
    texts = three.get("checks.fails(lambda: dist.all_reduce(torch.ones(9)))", [0, 1])
    assert all("Timed out waiting for all_reduce" in text for text in texts), texts
    assert any("member 2" in text for text in texts), texts


def test_disagreement(ranks: Make) -> None:
    three = ranks(3)
    texts = three.get("checks.fails(lambda: dist.all_reduce(torch.ones(9 if rank else 8)))")
    assert all("8" in text and "9" in text for text in texts), texts
    texts = three.get(
        "checks.fails(lambda: dist.all_reduce(torch.ones(8, dtype=torch.float64 if rank else torch.float32)))"
    )
    assert all("float32" in text and "float64" in text for text in texts), texts
    texts = three.get(
        "checks.fails(lambda: dist.barrier() if rank else dist.all_reduce(torch.ones(8)))"
    )
    assert all("barrier" in text and "all_reduce" in text for text in texts), texts
    # The process group works afterwards.
    three.run("x = torch.ones(3); dist.all_reduce(x); assert x.tolist() == [3.0] * 3")


def test_disagreeing_texts_of_the_program(ranks: Make) -> None:
    pair = ranks(2)
    pair.run(
        """
        def compared(text, **named):
            with dist.group.WORLD.comparing(text):
                work = dist.all_reduce(torch.ones(3), **named)
            return work and work.wait()
        """
    )
    for named in ("", ", async_op=True"):
        texts = pair.get(f"checks.fails(lambda: compared(f'weight {{rank}}'{named}))")
        assert all("weight 0" in text and "weight 1" in text for text in texts), texts
        pair.run(f"compared('bias'{named}); dist.all_reduce(torch.ones(3){named})")


def test_disagreeing_shapes_in_debug_mode(ranks: Make) -> None:
    pair = ranks(2, joins=False)
    pair.run("dist.set_debug_level(dist.DebugLevel.DETAIL)")
    pair.run(
        "dist.init_process_group('rdmatensor', init_method=f'file://{store}', rank=rank, world_size=size)"
    )
    pair.run("dist.all_reduce(torch.ones(2, 3)); dist.barrier()")
    texts = pair.get(
        "checks.fails(lambda: dist.all_reduce(torch.ones((2, 3) if rank else (3, 2))))"
    )
    assert all("(2, 3)" in text and "(3, 2)" in text for text in texts), texts


def test_missing_member(ranks: Make) -> None:
    three = ranks(3, timeout=2, joins=False)
    init = (
        "text = checks.fails(lambda: dist.init_process_group('rdmatensor', init_method=f'file://{store}', "
        "rank=rank, world_size=size, timeout=timedelta(seconds=2)))"
    )
    three.run(init, [0, 1])
    assert "rank 2" in three[0].get("text") or "member 2" in three[0].get("text"), three[0].get(
        "text"
    )


def test_missing_rank_0(ranks: Make) -> None:
    pair = ranks(2, joins=False)
    pair.run(
        "text = checks.fails(lambda: dist.init_process_group('rdmatensor', init_method=f'file://{store}', "
        "rank=rank, world_size=size, timeout=timedelta(seconds=1)), 'rank 0 has not come')",
        [1],
    )


def test_abort(ranks: Make) -> None:
    pair = ranks(2)
    pair[1].start("text = checks.fails(lambda: dist.all_reduce(torch.ones(9)))")
    pair[0].run("dist.group.WORLD.abort()")
    pair[1].finish()
    assert "rank 0 has aborted" in pair[1].get("text")
    assert "rank 0 has aborted" in pair[0].get("checks.fails(lambda: dist.barrier())")


def test_wait_with_a_time_out_can_be_repeated(ranks: Make) -> None:
    pair = ranks(2)
    pair.run(
        """
        x = torch.ones(3)
        if rank == 0:
            work = dist.all_reduce(x, async_op=True)
            checks.fails(lambda: work.wait(timedelta(seconds=0.1)), "timed out")
            assert not work.is_completed() and work.exception() is None
        """
    )
    pair.run("work = work if rank == 0 else dist.all_reduce(x, async_op=True); work.wait()")
    assert (
        pair.get("(work.is_completed(), work.is_success(), x.tolist())")
        == [(True, True, [2.0] * 3)] * 2
    )


def test_forked_child_is_told(ranks: Make) -> None:
    """Such as a worker of a DataLoader: it must not touch what belongs to its parent, which goes on."""
    pair = ranks(2)
    pair.run(
        """
        child = os.fork()
        if child == 0:
            try:
                checks.fails(lambda: dist.all_reduce(torch.ones(3)), "fork")
                os._exit(0)
            finally:
                os._exit(1)
        assert os.waitpid(child, 0)[1] == 0
        x = torch.ones(3)
        dist.all_reduce(x)
        assert x.tolist() == [2.0] * 3
        """
    )


def test_group_of_some_names_their_ranks(ranks: Make) -> None:
    three = ranks(3)
    three.run("group = dist.new_group([0, 2])")
    three.run(
        "checks.fails(lambda: dist.all_reduce(torch.ones(8 + rank), group=group), 'of ranks 0, 2')",
        [0, 2],
    )
