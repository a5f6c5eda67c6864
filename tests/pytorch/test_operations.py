# SPDX-License-Identifier: Apache-2.0
"""Each operation of torch.distributed: what it gives."""

from __future__ import annotations

import pytest

from pytorch.ranks import Ranks

REDUCED = ["float16", "bfloat16", "float32", "float64", "int8", "uint8", "int32", "int64"]
MOVED = [*REDUCED, "int16", "bool", "complex64", "float8_e4m3fn", "float8_e5m2", "uint16"]


@pytest.mark.parametrize("dtype", MOVED)
def test_moves(three: Ranks, dtype: str) -> None:
    three.run(
        """
        for strided in (False, True):
            for async_op in (False, True):
                checks.moves(dtype, strided, async_op)
        """,
        dtype=dtype,
    )


@pytest.mark.parametrize("dtype", REDUCED)
def test_reductions(three: Ranks, dtype: str) -> None:
    three.run(
        """
        for strided in (False, True):
            for async_op in (False, True):
                checks.reductions(dtype, strided, async_op, gloo)
        """,
        dtype=dtype,
    )


def test_gather_single(three: Ranks) -> None:
    """torch 2.14 has it as a function; it is a method of the process group with every torch."""
    three.run(
        """
        from torch._C import _distributed_c10d as c10d
        options = c10d.GatherOptions()
        options.rootRank = 1
        out = torch.empty(6, 2) if rank == 1 else torch.empty(0)
        dist.group.WORLD.gather_single(out, torch.full((2, 2), float(rank)), options).wait()
        if rank == 1:
            assert out.tolist() == [[0.0] * 2] * 2 + [[1.0] * 2] * 2 + [[2.0] * 2] * 2
        if hasattr(dist, "gather_single"):
            dist.gather_single(torch.full((2, 2), float(rank)), out if rank == 1 else None, 1)
        """
    )


def test_reductions_that_gloo_lacks(three: Ranks) -> None:
    three.run(
        """
        x = torch.tensor([rank == 0, True, False])
        dist.all_reduce(x)
        assert x.tolist() == [True, True, False]
        x = torch.tensor([rank == 0, True, False])
        dist.all_reduce(x, dist.ReduceOp.PRODUCT)
        assert x.tolist() == [False, True, False]
        x = torch.full((3,), rank + 1.0)
        dist.all_reduce(x, dist.ReduceOp.AVG)
        assert x.tolist() == [2.0] * 3
        x = torch.full((3,), rank + 1.0)
        dist.all_reduce(x, torch._C._distributed_c10d._make_nccl_premul_sum(0.5))
        assert x.tolist() == [3.0] * 3
        x = torch.full((3,), complex(rank, 1))
        dist.all_reduce(x)
        assert x.tolist() == [3 + 3j] * 3
        x = torch.full((3,), rank + 1.0).to(torch.float8_e5m2)
        dist.all_reduce(x, dist.ReduceOp.MAX)
        assert x.float().tolist() == [3.0] * 3
        """
    )


def test_sparse(three: Ranks) -> None:
    three.run(
        """
        made = torch.sparse_coo_tensor([[0] * rank + [rank, 4]], [1.0] * rank + [2.0, 3.0], (5,))
        for async_op in (False, True):
            got, wanted = made.clone(), made.clone()
            checks.done(dist.all_reduce(got, async_op=async_op))
            dist.all_reduce(wanted, group=gloo)
            checks.same(got.to_dense(), wanted.to_dense())
        """
    )


def test_messages(three: Ranks) -> None:
    """Round the ring, by tag, from any source, and of strided tensors."""
    three.run(
        """
        after, before = (rank + 1) % size, (rank - 1) % size
        for tag in (0, 7):
            got = torch.empty(4, 5).t()
            work = dist.isend(torch.full((5, 4), float(10 * rank + tag)), after, tag=tag)
            dist.recv(got, before, tag=tag)
            work.wait()
            assert torch.equal(got, torch.full((5, 4), float(10 * before + tag)))
        # Tags, not the order, say what is what.
        sends = [dist.isend(torch.tensor([float(tag)]), after, tag=tag) for tag in (1, 2, 3)]
        for tag in (3, 1, 2):
            got = torch.empty(1)
            dist.recv(got, before, tag=tag)
            assert got.item() == tag
        for each in sends:
            each.wait()
        if rank == 0:
            seen = set()
            for _ in range(2 * (size - 1)):
                got = torch.empty(3)
                source = dist.recv(got)
                assert got.tolist() == [float(source)] * 3
                seen.add(source)
            assert seen == {1, 2}
        else:
            for _ in range(2):
                dist.send(torch.full((3,), float(rank)), 0)
        x, y = torch.full((1 << 18,), float(rank)), torch.empty(1 << 18)
        # With another tag: rank 0 may still receive from any source.
        works = dist.batch_isend_irecv(
            [dist.P2POp(dist.isend, x, after, tag=1), dist.P2POp(dist.irecv, y, before, tag=1)])
        for each in works:
            each.wait()
        assert y[0] == y[-1] == before
        """
    )


def test_equal_parts_whose_sizes_only_one_member_gives(three: Ranks) -> None:
    three.run(
        """
        sizes = [2, 2, 2] if rank == 1 else None
        out = torch.empty(6)
        dist.all_to_all_single(out, 6.0 * rank + torch.arange(6.0), sizes, sizes)
        assert out.tolist() == [6.0 * source + 2 * rank + each for source in range(3) for each in (0, 1)]
        same = 6.0 * rank + torch.arange(6.0)
        dist.all_to_all_single(same, same)
        assert same.tolist() == out.tolist()
        """
    )


def test_unequal_parts(three: Ranks) -> None:
    three.run(
        """
        for async_op in (False, True):
            # Rank i sends i + j rows to rank j.
            sent, received = [rank + each for each in range(size)], [each + rank for each in range(size)]
            given = torch.cat([torch.full((rows, 2), 10.0 * rank + to) for to, rows in enumerate(sent)])
            wanted = torch.cat(
                [torch.full((rows, 2), 10.0 * source + rank) for source, rows in enumerate(received)])
            out = torch.empty(sum(received), 2)
            checks.done(dist.all_to_all_single(out, given, received, sent, async_op=async_op))
            checks.same(out, wanted)
            outs = [torch.empty(rows, 2) for rows in received]
            checks.done(dist.all_to_all(outs, list(given.split(sent)), async_op=async_op))
            checks.same(torch.cat(outs), wanted)
            outs = [torch.empty(each + 1) for each in range(size)]
            checks.done(dist.all_gather(outs, torch.full((rank + 1,), float(rank)), async_op=async_op))
            assert torch.cat(outs).tolist() == [0.0, 1.0, 1.0, 2.0, 2.0, 2.0]
            out = torch.empty(rank + 1)
            parts = [torch.full((each + 1,), float(rank)) for each in range(size)]
            checks.done(dist.reduce_scatter(out, parts, async_op=async_op))
            assert out.tolist() == [3.0] * (rank + 1)
        """
    )


def test_split_group(three: Ranks) -> None:
    three.run(
        """
        pg = dist.group.WORLD
        for _ in range(2):
            part = pg.split_group([2, 0])
            assert (part is None) == (rank == 1)
            if part is not None:
                assert part.size() == 2 and part.rank() == (0 if rank == 2 else 1)
                x = torch.full((3,), float(rank + 1))
                part.allreduce(x).wait()
                assert x.tolist() == [4.0] * 3
                part.monitored_barrier(timedelta(seconds=30))
                part.shutdown()
        """
    )


def test_empty_tensors(three: Ranks) -> None:
    three.run(
        """
        dist.all_reduce(torch.empty(0))
        dist.broadcast(torch.empty(0, 3), 0)
        dist.all_gather([torch.empty(0) for _ in range(size)], torch.empty(0))
        """
    )


def test_objects(three: Ranks) -> None:
    three.run(
        """
        objects = [None] * size
        dist.all_gather_object(objects, {"rank": rank, "text": "x" * 1000 * rank})
        assert [each["rank"] for each in objects] == list(range(size))
        objects = [{"a": 1}, "b", None] if rank == 1 else [None] * 3
        dist.broadcast_object_list(objects, 1)
        assert objects == [{"a": 1}, "b", None]
        objects = [None] * size if rank == 2 else None
        dist.gather_object(("from", rank), objects, 2)
        assert rank != 2 or objects == [("from", each) for each in range(size)]
        got = [None]
        dist.scatter_object_list(got, [[each] for each in range(size)] if rank == 0 else None, 0)
        assert got == [[rank]]
        """
    )


def test_coalesced(three: Ranks) -> None:
    three.run(
        """
        pg = dist.group.WORLD
        for async_op in (False, True):
            xs = [torch.full((each + 1,), rank + 1.0) for each in range(4)]
            with dist._coalescing_manager(async_ops=async_op) as works:
                for x in xs:
                    dist.all_reduce(x)
            if async_op:
                works.wait()
            assert all(torch.equal(x, torch.full_like(x, 6.0)) for x in xs)
            outs = [torch.empty(size * 2), torch.empty(size * 3)]
            with dist._coalescing_manager(async_ops=async_op) as works:
                for out in outs:
                    dist.all_gather_single(out, torch.full((len(out) // size,), float(rank)))
            if async_op:
                works.wait()
            assert outs[1].tolist() == [0.0] * 3 + [1.0] * 3 + [2.0] * 3
        pg.start_coalescing()
        x, y = torch.full((2,), rank + 1.0), torch.full((3,), float(rank))
        pg.allreduce([x])
        pg.broadcast([y], 2)
        work = pg.end_coalescing()
        work.wait()
        assert x.tolist() == [6.0] * 2 and y.tolist() == [2.0] * 3
        """
    )


def test_coalesced_tensors_have_one_size_each(three: Ranks) -> None:
    """Short ones travel together, and no member takes a part for another one."""
    three.run(
        """
        xs = [torch.full((2,), rank + 1.0)[::2], torch.full((2, 3), rank, dtype=torch.float32).t()]
        dist.all_reduce_coalesced(xs, op=dist.ReduceOp.MAX)
        assert xs[0].tolist() == [3.0] and xs[1].tolist() == [[2.0] * 2] * 3
        mixed = [torch.ones(2), torch.ones(2, dtype=torch.bfloat16), torch.ones(40000)]
        dist.group.WORLD.allreduce_coalesced(mixed, dist.AllreduceCoalescedOptions()).wait()
        assert all(torch.equal(x, torch.full_like(x, 3.0)) for x in mixed)
        sizes = (2, 3) if rank else (3, 2)
        try:
            dist.all_reduce_coalesced([torch.ones(each) for each in sizes])
        except dist.DistBackendError as error:
            assert "elements of each tensor: [" in str(error), error
        else:
            raise AssertionError("nobody noticed")
        """
    )


def test_one_waits_for_what_others_start(three: Ranks) -> None:
    """Operations have one order, whether members wait for them at once or later."""
    three.run(
        """
        x = torch.full((2,), rank + 1.0)
        for number in range(4):
            work = dist.all_reduce(x, async_op=(rank + number) % 2 == 0)
            if work is not None:
                work.wait()
        assert x.tolist() == [6.0 * 27] * 2, x
        works = [dist.barrier(async_op=rank == 1), dist.broadcast(x, 2, async_op=rank != 1)]
        outs = [torch.empty(2) for _ in range(size)]
        works.append(dist.all_gather(outs, x, async_op=rank == 0))
        for work in works:
            if work is not None:
                work.wait()
        assert torch.cat(outs).tolist() == [6.0 * 27] * 6
        """
    )


def test_old_names_and_short_forms(three: Ranks) -> None:
    three.run(
        """
        pg = dist.group.WORLD
        x = torch.full((2,), rank + 1.0)
        pg.allreduce(x).wait()
        assert x.tolist() == [6.0] * 2
        x = torch.full((2,), rank + 1.0)
        pg.allreduce([x], dist.ReduceOp.MAX).wait()
        assert x.tolist() == [3.0] * 2
        x = torch.full((2,), float(rank))
        pg.broadcast(x, root=1).wait()
        assert x.tolist() == [1.0] * 2
        x = torch.full((2,), rank + 1.0)
        pg.reduce(x, 0, dist.ReduceOp.SUM).wait()
        assert rank or x.tolist() == [6.0] * 2
        out = torch.empty(6)
        pg._allgather_base(out, torch.full((2,), float(rank))).wait()
        assert out.tolist() == [0.0, 0.0, 1.0, 1.0, 2.0, 2.0]
        out = torch.empty(2)
        pg._reduce_scatter_base(out, torch.arange(6.0)).wait()
        assert out.tolist() == [6.0 * rank, 6.0 * rank + 3]
        outs = [torch.empty(1) for _ in range(size)]
        pg.allgather(outs, torch.tensor([float(rank)])).wait()
        assert torch.cat(outs).tolist() == [0.0, 1.0, 2.0]
        outs = [torch.empty(1) for _ in range(size)] if rank == 1 else []
        pg.gather(outs, torch.tensor([float(rank)]), 1).wait()
        assert rank != 1 or torch.cat(outs).tolist() == [0.0, 1.0, 2.0]
        pg.barrier(timedelta(seconds=30)).wait()
        outs = [[torch.empty(2), torch.empty(1)] for _ in range(size)]
        pg.allgather_coalesced(outs, [torch.full((2,), float(rank)), torch.tensor([-1.0 * rank])]).wait()
        assert [each[1].item() for each in outs] == [0.0, -1.0, -2.0]
        """
    )


def test_wait_tensor_waits_for_calls_under_way(three: Ranks) -> None:
    """As compiled code does, for tensors that it gets from outside."""
    three.run(
        """
        from torch._C._distributed_c10d import _get_work_registry_size as registered
        from torch.distributed import _functional_collectives as functional

        @torch.compile(backend="aot_eager", fullgraph=True)
        def doubled(x):
            return torch.ops.c10d_functional.wait_tensor(x) * 2

        store = dist.distributed_c10d._get_default_store()
        with functional.allow_inflight_collective_as_graph_input_ctx():
            for number, wait in enumerate((torch.ops._c10d_functional.wait_tensor, doubled)):
                if rank != 0:
                    store.wait([f"rank 0 waits {number}"])
                x = torch.ones(1000)
                work = dist.all_reduce(x, async_op=True)
                if rank == 0:
                    assert registered() == 1 and not work.is_completed()
                    store.set(f"rank 0 waits {number}", "")
                assert wait(x)[-1] == 3.0 * (1 + number) and work.is_completed() and registered() == 0
            pair = torch.zeros(2)
            works = [dist.irecv(pair[each:each + 1], (rank - 1) % size, tag=each) for each in (0, 1)]
            assert registered() == 2
            dist.send(torch.tensor([4.0]), (rank + 1) % size, tag=0)
            works[0].wait()
            assert pair[0] == 4.0 and registered() == 1
            dist.send(torch.tensor([5.0]), (rank + 1) % size, tag=1)
            works[1].wait()
            assert pair.tolist() == [4.0, 5.0] and registered() == 0
        assert dist.all_reduce(x, async_op=True).wait() and registered() == 0
        """
    )


def test_futures_are_completed_in_their_order(three: Ranks) -> None:
    three.run(
        """
        seen, works = [], []
        xs = [torch.full((1 << (20 - 5 * each),), 1.0) for each in range(4)]
        for number, x in enumerate(xs):
            work = dist.all_reduce(x, async_op=True)
            future = work.get_future()
            assert work.get_future() is future
            works.append(future.then(lambda done, number=number: seen.append(number) or done.value()))
        for work, x in zip(works, xs):
            assert work.wait()[0].data_ptr() == x.data_ptr() and x[-1] == 3.0
        assert seen == [0, 1, 2, 3]
        """
    )


def test_future_is_complete_after_the_wait_for_its_work(three: Ranks) -> None:
    """Even if the thread that completes futures is busy with a callback."""
    three.run(
        """
        busy, go_on = threading.Event(), threading.Event()
        held = dist.irecv(torch.empty(3), (rank - 1) % size).get_future()
        held.add_done_callback(lambda _: busy.set() or go_on.wait(60))
        dist.barrier()
        dist.send(torch.ones(3), (rank + 1) % size)
        assert busy.wait(60)
        second = dist.all_reduce(torch.ones(3), async_op=True)
        future = second.get_future()
        second.wait()
        assert future.done() and future.value()[0][0] == 3.0
        go_on.set()
        held.wait()
        """
    )


def test_futures_keep_nothing_alive(three: Ranks) -> None:
    """Buckets of gradients are large: they must not wait for the garbage collector."""
    three.run(
        """
        import gc, weakref
        gc.disable()
        try:
            for waits in (True, False):
                work = dist.all_reduce(torch.ones(1000), async_op=True)
                future, seen = work.get_future(), threading.Event()
                future.add_done_callback(lambda _: seen.set())
                assert not waits or future.wait()[0][0] == 3.0
                assert seen.wait(30)
                left = weakref.ref(work)
                del work, future
                dist.barrier()  # after it, the thread of callbacks has let go of its own
                checks.until(lambda: left() is None)
        finally:
            gc.enable()
        """
    )


def test_future_waited_for_in_a_callback(three: Ranks) -> None:
    three.run(
        """
        def again(done):
            return dist.all_reduce(done.value()[0], async_op=True).get_future().wait()[0]

        x = torch.ones(3)
        future = dist.all_reduce(x, async_op=True).get_future().then(again)
        assert future.wait().tolist() == [9.0] * 3
        """
    )


def test_functional_operations(three: Ranks) -> None:
    three.run(
        """
        import torch.distributed._functional_collectives as functional
        pg = dist.group.WORLD
        x = torch.full((3, 2), rank + 1.0)
        assert functional.all_reduce(x, "sum", pg).tolist() == [[6.0] * 2] * 3
        assert functional.all_gather_tensor(x, 0, pg).shape == (9, 2)
        assert functional.reduce_scatter_tensor(x, "sum", 0, pg).tolist() == [[6.0] * 2]
        assert functional.broadcast(x, 1, pg).tolist() == [[2.0] * 2] * 3
        got = functional.all_reduce_coalesced([x, x + 1], "max", pg)
        assert got[1].tolist() == [[4.0] * 2] * 3
        got = functional.all_to_all_single(x, None, None, pg)
        assert got.tolist() == [[1.0] * 2, [2.0] * 2, [3.0] * 2]
        def step(x):
            return functional.all_reduce(x * 2, "sum", pg) + 1
        assert torch.compile(step, backend="aot_eager", fullgraph=True)(x).tolist() == [[13.0] * 2] * 3
        """
    )


def test_events_of_the_profiler(three: Ranks) -> None:
    names = three.get(
        """sorted(each.name for each in checks.profiled() if each.name.startswith("rdmatensor:"))"""
    )
    assert names == [["rdmatensor:all_reduce", "rdmatensor:all_reduce", "rdmatensor:barrier"]] * 3


def test_monitored_barrier(three: Ranks) -> None:
    three.run("dist.group.WORLD.monitored_barrier(timedelta(seconds=30))")
    texts = three.get(
        """checks.fails(lambda: dist.group.WORLD.monitored_barrier(timedelta(seconds=0.5), True))""",
        among=[0],
    )
    assert texts == ["Ranks 1, 2 failed to pass monitoredBarrier in 500 ms"]
    # The others come late, and learn how it ended.
    late = three.get(
        """checks.fails(lambda: dist.group.WORLD.monitored_barrier(timedelta(seconds=30)))""",
        among=[1, 2],
    )
    assert all("Ranks 1, 2 failed" in text for text in late)
    three.run("dist.group.WORLD.monitored_barrier(timedelta(seconds=30))")


def test_registered_memory(three: Ranks) -> None:
    three.run(
        """
        x = rdmatensor.torch.empty((2, 3), torch.bfloat16)
        assert x.shape == (2, 3) and x.dtype is torch.bfloat16 and not x.any()
        x += rank
        dist.all_reduce(x)
        assert x.tolist() == [[3.0] * 3] * 2
        before = dist.group.WORLD._calls.group.info.copies
        dist.all_reduce(rdmatensor.torch.empty((512, 1024)))
        assert dist.group.WORLD._calls.group.info.copies == before
        """
    )
