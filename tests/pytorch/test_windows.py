# SPDX-License-Identifier: Apache-2.0
"""Windows: what members put into each other's memory, and how they signal it.

RDMATENSOR_TEST_TRANSPORT names another transport than the two that every machine has.
"""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest

from pytorch.ranks import Ranks

Make = Callable[..., Ranks]
TRANSPORTS = os.environ.get("RDMATENSOR_TEST_TRANSPORT", "shm tcp").split()
OVER = pytest.mark.parametrize("transport", TRANSPORTS)
WINDOW = """
empty = rdmatensor.torch.empty
world = dist.group.WORLD
after, before = (rank + 1) % size, (rank - 1) % size
def within(seconds):
    class Options:
        timeout = timedelta(seconds=seconds)
    return Options
"""


def make(ranks: Make, size: int, transport: str = "shm", **arguments: float) -> Ranks:
    made = ranks(size, environment={"RDMATENSOR_TRANSPORTS": transport}, **arguments)
    made.run(WINDOW)
    return made


@OVER
def test_ring(ranks: Make, transport: str) -> None:
    make(ranks, 3, transport).run(
        """
        count = 1000
        for kind in (torch.float32, torch.bfloat16, torch.bool, torch.complex64, torch.float8_e4m3fn):
            tensor = empty(count * size, kind)
            window = world.new_window(tensor)
            for step, async_op in enumerate((False, True, False)):
                given = torch.arange(count).add(rank + step).remainder(2).to(kind)
                work = window.put(given, after, after * count, async_op)
                assert work.wait()
                assert window.wait_signal(before, async_op).wait()
                wanted = torch.arange(count).add(before + step).remainder(2).to(kind)
                checks.same(tensor[rank * count :][:count].clone(), wanted)
                dist.barrier()
            window.tensor_deregister()
        """
    )


@OVER
def test_signal_follows_all_that_was_put(ranks: Make, transport: str) -> None:
    """Big puts that do not signal, none waited for; then the signal of a small one."""
    make(ranks, 2, transport).run(
        """
        class Quiet:
            timeout, hints = timedelta(seconds=-1), {"signal": "0"}
        count = 1 << 20
        tensor = empty(4 * count)
        window = world.new_window(tensor)
        for step in range(10):
            if rank == 0:
                given = [torch.full((count,), float(step * 4 + at)) for at in range(4)]
                works = [window.put(each, 1, at * count, True, Quiet) for at, each in enumerate(given)]
                window.signal(1)
                for each in works:
                    each.wait()
                window.wait_signal(1)
            else:
                window.wait_signal(0)
                got = tensor.view(4, count)
                assert [(row.min().item(), row.max().item()) for row in got] == [
                    (step * 4.0 + at,) * 2 for at in range(4)]
                window.signal(0)
        window.tensor_deregister()
        """
    )


@OVER
def test_deregistering_waits_for_what_was_put(ranks: Make, transport: str) -> None:
    """By any member, without a signal and without a wait."""
    make(ranks, 3, transport).run(
        """
        class Quiet:
            timeout, hints = timedelta(seconds=-1), {"signal": "0"}
        count = 1 << 20
        tensor = empty(size * count)
        window = world.new_window(tensor)
        given = torch.full((count,), rank + 1.0)
        for other in range(size):
            window.put(given, other, rank * count, True, Quiet)
        window.tensor_deregister()
        assert torch.equal(tensor.view(size, count), torch.arange(1.0, size + 1)[:, None].expand(size, count))
        """
    )


@OVER
def test_signals_are_counted(ranks: Make, transport: str) -> None:
    """Many that nobody waits for do not block their sender, and each ends one wait."""
    two = make(ranks, 2, transport)
    two.run("window = world.new_window(empty(1)); other = world.new_window(empty(1))")
    two.run("for _ in range(2000): window.signal(1)", [0])
    two.run(
        """
        for _ in range(2000):
            window.wait_signal(0)
        checks.fails(lambda: window.wait_signal(0, opts=within(0.05)), "Timed out", "rank 0 has not")
        checks.fails(lambda: other.wait_signal(0, opts=within(0.05)), "Timed out", "rank 0 has not")
        late = window.wait_signal(0, True)
        assert not late.is_completed()
        """,
        [1],
    )
    two.run("window.signal(1); other.signal(1)", [0])
    two.run("late.wait(); assert late.is_success(); other.wait_signal(0)", [1])
    # And to oneself, without a connection.
    two.run(
        """
        window.signal(rank); window.put(torch.full((1,), 7.0), rank, 0)
        window.wait_signal(rank); window.wait_signal(rank)
        assert window.map_remote_tensor(rank).tolist() == [7.0]
        """
    )


def test_futures(ranks: Make) -> None:
    """A wait for a signal holds up no other future, and ends in time."""
    two = make(ranks, 2)
    two.run(
        """
        window = world.new_window(empty(1))
        never = window.wait_signal(after, True, within(0.2)).get_future()
        later = window.wait_signal(after, True).get_future()
        got = dist.all_reduce(torch.ones(2), async_op=True).get_future().wait()
        assert got[0].tolist() == [2.0, 2.0]
        checks.fails(never.wait, "Timed out", f"rank {after} has not signalled")
        dist.barrier()
        window.signal(after)
        later.wait()
        """
    )


def test_map(ranks: Make) -> None:
    two = make(ranks, 2)
    two.run(
        """
        tensor = empty((3, 4), torch.int64)
        window = world.new_window(tensor)
        theirs = window.map_remote_tensor(after)
        assert theirs.shape == (3, 4) and theirs.dtype is torch.int64
        theirs[rank] = rank + 5
        dist.barrier()
        assert tensor[after].tolist() == [after + 5] * 4
        window.tensor_deregister()
        theirs.sum()  # it is still there
        """
    )


def test_map_over_tcp_is_refused(ranks: Make) -> None:
    make(ranks, 2, "tcp").run(
        """
        window = world.new_window(empty(3))
        checks.fails(lambda: window.map_remote_tensor(after), f"rank {after}", "over tcp", "let it put")
        """
    )


def test_members_differ(ranks: Make) -> None:
    """Sizes, dtypes and places in memory are each member's own."""
    make(ranks, 2).run(
        """
        memory = empty(64 + rank, [torch.float32, torch.int16][rank])
        window = world.new_window(memory[3 + rank :])
        checks.fails(lambda: window.put(memory[:2], after, 0), "does not match")
        window.put(torch.full((2,), 3, dtype=[torch.int16, torch.float32][rank]), after, 59)
        window.wait_signal(before)
        assert memory[-2:].tolist() == [3, 3] and not memory[:-2].any()
        """
    )


def test_wrong_calls(ranks: Make) -> None:
    two = make(ranks, 2)
    two.run(
        """
        window = world.new_window()
        for call in (lambda: window.put(torch.ones(1), 0, 0), lambda: window.signal(0),
                     lambda: window.wait_signal(0), lambda: window.map_remote_tensor(0),
                     window.tensor_deregister):
            checks.fails(call, "not registered")
        tensor = empty(16)
        window.tensor_register(tensor)
        checks.fails(lambda: window.tensor_register(tensor), "double registration")
        checks.fails(lambda: window.put(torch.ones(16), after, 8), "exceeds the window size")
        checks.fails(lambda: window.put(torch.ones(1), after, 1 << 62), "exceeds the window size")
        checks.fails(lambda: window.put(torch.ones(1), after, -1), "nonnegative")
        checks.fails(lambda: window.put(torch.ones(1, dtype=torch.int32), after, 0), "does not match")
        checks.fails(lambda: window.put(torch.ones(1, device="meta"), after, 0), "on meta")
        for call in (lambda: window.put(torch.ones(1), 2, 0), lambda: window.signal(-1),
                     lambda: window.wait_signal(2), lambda: window.map_remote_tensor(2),
                     lambda: window.get_attr(2)):
            checks.fails(call, "not in the window's group of 2")
        assert not tensor.any()
        window.tensor_deregister()
        checks.fails(lambda: window.put(torch.ones(1), after, 0), "not registered")
        """
    )


def test_tensor_that_cannot_be_registered(ranks: Make) -> None:
    """At one member, and all learn of it."""
    make(ranks, 2).run(
        """
        wrong = [torch.ones(3), empty((3, 4)).t(), empty(0), torch.ones(3, device="meta")]
        for each, why in zip(wrong, ["rdmatensor.torch.empty", "contiguous", "elements", "on the CPU"]):
            whose = "rank 1 could not register" if rank == 0 else ""
            checks.fails(lambda: world.new_window(each if rank == 1 else empty(3)), why, whose)
        window = world.new_window(empty(3))
        window.tensor_deregister()
        """
    )


@OVER
def test_killed_member(ranks: Make, transport: str) -> None:
    """Who waits for it is told, but not before all has come that it had signalled."""
    three = make(ranks, 3, transport)
    three.run("window = world.new_window(empty(4))")
    three.run("window.put(torch.full((4,), 9.0), 0, 0)", [2])
    three[1].start("text = checks.fails(lambda: window.wait_signal(2))")
    three[2].kill()
    three[1].finish()
    text = three[1].get("text")
    assert "rank 2 cannot signal any more" in text and "wait_signal from rank 2" in text, text
    three[0].run(
        """
        window.wait_signal(2)
        assert window.map_remote_tensor(0).tolist() == [9.0] * 4
        checks.fails(lambda: window.wait_signal(2), "rank 2 cannot signal any more")
        checks.fails(lambda: [window.put(torch.ones(1), 2, 0) for _ in range(1000)], "put to rank 2")
        checks.fails(window.tensor_deregister, "deregistering a window", "member 2")
        checks.fails(lambda: window.signal(1), "not registered")
        """
    )


def test_stopped_member(ranks: Make) -> None:
    """Time-outs are those of the call, and the error names the member."""
    two = make(ranks, 2, "tcp", timeout=20)
    two.run(
        "window = world.new_window(empty(1 << 20)); window.signal(after); window.wait_signal(before)"
    )
    two[1].stop()
    two[0].run(
        """
        given = torch.ones(1 << 20)
        checks.fails(lambda: [window.put(given, 1, 0, False, within(0.5)) for _ in range(100)],
                     "Timed out waiting for put to rank 1")
        checks.fails(lambda: window.wait_signal(1, False, within(0.5)), "rank 1 has not signalled within 0.5")
        """
    )


def test_forked_child_is_told(ranks: Make) -> None:
    make(ranks, 2).run(
        """
        window = world.new_window(empty(1))
        child = os.fork()
        if child == 0:
            try:
                checks.fails(lambda: window.wait_signal(after), "forked")
                del window
                os._exit(0)
            finally:
                os._exit(1)
        assert os.waitpid(child, 0)[1] == 0
        window.signal(after)
        window.wait_signal(before)
        """
    )


def test_destroyed_group(ranks: Make) -> None:
    """Windows that were not deregistered end with their process group; who waits is told."""
    two = make(ranks, 2)
    two.run(
        """
        group = dist.new_group([0, 1])
        window = group.new_window(empty(4))
        waiting = window.wait_signal(after, True)
        dist.destroy_process_group(group)
        checks.fails(waiting.wait, "not registered any more")
        checks.fails(lambda: window.signal(after), "not registered")
        """
    )


@pytest.mark.parametrize("transport", ["shm", pytest.param("tcp", marks=pytest.mark.long)])
def test_a_thousand_windows(ranks: Make, transport: str) -> None:
    """Nothing is left of them; every tenth is dropped without a word."""
    two = make(ranks, 2, transport)
    source = """
        from support.usage import usage
        def many(count):
            for number in range(count):
                tensor = empty(1000)
                window = world.new_window(tensor)
                window.put(torch.ones(1000), after, 0)
                window.wait_signal(before)
                assert tensor.sum() == 1000
                if number % 10:
                    window.tensor_deregister()
                else:
                    dist.barrier()
            del window, tensor
            import gc
            gc.collect()
    """
    two.run(source)
    two.run("many(11); held = usage(), len(world._windows), world._session.device.stats().regions")
    two.run("many(1000); now = usage(), len(world._windows), world._session.device.stats().regions")
    assert two.get("now") == two.get("held")
