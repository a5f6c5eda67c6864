# SPDX-License-Identifier: Apache-2.0
"""A process group changes its members: it grows, shrinks, merges with others, and goes on after failures."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pytorch.ranks import Ranks

Make = Callable[..., Ranks]
SETUP = """
from pytorch.checks import Reconfigure
world = dist.group.WORLD
def check(numbers):
    assert (dist.get_rank(), dist.get_world_size()) == (numbers.index(rank), len(numbers))
    x = torch.full((3,), float(rank))
    dist.all_reduce(x)
    assert x.tolist() == [float(sum(numbers))] * 3
    x = torch.full((3,), float(rank))
    dist.broadcast(x, group_src=len(numbers) - 1)
    assert x.tolist() == [float(numbers[-1])] * 3
"""
CHANGE = """
world.reconfigure(Reconfigure(uuid, [handles[each] for each in numbers])).wait()
check(numbers)
"""


def change(ranks: Ranks, uuid: int, numbers: Sequence[int]) -> None:
    ranks.run(CHANGE, sorted(numbers), uuid=uuid, numbers=list(numbers))


def make(ranks: Make, size: int, **arguments: float) -> Ranks:
    made = ranks(size, **arguments)
    made.run(SETUP)
    made.run("pass", handles=made.get("world.get_reconfigure_handle()"))
    return made


def test_shrink_and_grow(ranks: Make) -> None:
    """A handle stays valid; ranks are those of the list."""
    three = make(ranks, 3)
    change(three, 1, [0, 2])
    three.run("checks.fails(lambda: dist.all_reduce(torch.ones(3)), 'member')", [1])
    change(three, 2, [2, 1, 0])
    for alone in range(3):
        change(three, 10 + alone, [alone])
    change(three, 3, [0, 1, 2])
    three.run(
        """
        group = dist.new_group([0, 2])
        if rank != 1:
            x = torch.ones(3)
            dist.all_reduce(x, group=group)
            assert x.tolist() == [2.0] * 3
        window = world.new_window(rdmatensor.torch.empty(1))
        window.signal((rank + 1) % 3)
        window.wait_signal((rank + 2) % 3)
        world.reconfigure(Reconfigure(4, set(handles))).wait()
        x = torch.ones(3)
        dist.all_reduce(x)
        assert x.tolist() == [3.0] * 3
        checks.fails(lambda: window.signal(0), "not registered")
        """
    )


def test_after_an_abort(ranks: Make) -> None:
    three = make(ranks, 3)
    three.run("world.abort()", [1])
    three.run("checks.fails(lambda: dist.all_reduce(torch.ones(3)), 'rank 1 has aborted')")
    change(three, 1, [0, 1, 2])


def test_after_a_death(ranks: Make) -> None:
    """A process that was started in the place of one that died joins the others, from a store of its own."""
    three = make(ranks, 3)
    three[1].kill()
    three.run("checks.fails(lambda: dist.all_reduce(torch.ones(3)), 'member 1')", [0, 2])
    change(three, 1, [0, 2])
    other = ranks(1)
    other.run(SETUP)
    other.run("rank = 7")
    handles = three[0].get("handles")
    handles = {0: handles[0], 2: handles[2], 7: other.get("world.get_reconfigure_handle()")[0]}
    numbers = [2, 7, 0]
    peers = [three[0], three[2], other[0]]
    for peer in peers:
        peer.start(CHANGE, uuid=2, numbers=numbers, handles=handles)
    for peer in peers:
        peer.finish()
    for peer in peers:
        peer.run("window = None; dist.destroy_process_group()")


def test_who_does_not_come_is_named(ranks: Make) -> None:
    """Then the group has no members, and can be changed again."""
    three = make(ranks, 3)
    for missing in (2, 0):
        three.run(
            """
            text = checks.fails(lambda: world.reconfigure(Reconfigure(uuid, handles, timedelta(seconds=1))),
                                f"reconfigure {uuid}")
            checks.fails(lambda: dist.barrier(), "no members: call reconfigure")
            """,
            [each for each in range(3) if each != missing],
            uuid=missing,
        )
    assert "member 2" in three[0].get("text") or "rank 2" in three[0].get("text")
    change(three, 5, [0, 1, 2])


def test_wrong_arguments(ranks: Make) -> None:
    """The group stays as it is."""
    pair = make(ranks, 2)
    pair.run(
        """
        for handles_, why in (([handles[1 - rank]], "not among"), ([handles[rank]] * 2, "two handles"),
                              (["x"], "no handle"), ([handles[rank][:-1]], "no handle"), ([], "not among")):
            checks.fails(lambda: world.reconfigure(Reconfigure(1, handles_)), why)
        check([0, 1])
        """
    )
    change(pair, 1, [0, 1])
    pair.run(
        """
        checks.fails(lambda: world.reconfigure(Reconfigure(1, handles)), "already used")
        check([0, 1])
        """
    )


def test_members_that_differ(ranks: Make) -> None:
    """In the order of the handles: no group comes of it, and nobody hangs."""
    pair = make(ranks, 2, timeout=2)
    pair.run(
        "checks.fails(lambda: world.reconfigure(Reconfigure(1, handles[::1 - 2 * rank])), 'reconfigure 1')"
    )
    change(pair, 2, [0, 1])


def test_again_and_again(ranks: Make) -> None:
    """Nothing is left of earlier members."""
    pair = make(ranks, 2)
    pair.run("from support.usage import usage")
    source = """
        for uuid in range(first, first + count):
            world.reconfigure(Reconfigure(uuid, handles if uuid % 2 else handles[::-1])).wait()
            x = torch.ones(3)
            dist.all_reduce(x)
            assert x.tolist() == [2.0] * 3
    """
    pair.run(source, first=1, count=4)
    pair.run("held = usage()")
    pair.run(source, first=100, count=50)
    pair.run("now = usage()")
    assert pair.get("now") == pair.get("held")


def test_not_joined_at_first(ranks: Make) -> None:
    """With enable_reconfigure of torch 2.14, nobody waits for others at first."""
    pair = ranks(2, joins=False)
    pair.run(
        """
        import types
        from rdmatensor.torch.process_group import create
        given = types.SimpleNamespace(
            store=dist.FileStore(store, size), group_rank=rank, group_size=size, group_id="0",
            timeout=timedelta(seconds=20), global_ranks_in_group=[], enable_reconfigure=True)
        world = create(given)
        assert world.supports_reconfigure and world.size() == 2
        checks.fails(world.barrier, "call reconfigure")
        checks.fails(lambda: world.new_window(torch.ones(1)), "call reconfigure")
        """
    )
    pair.run(
        "from pytorch.checks import Reconfigure", handles=pair.get("world.get_reconfigure_handle()")
    )
    pair.run(
        """
        world.reconfigure(Reconfigure(1, handles)).wait()
        x = torch.ones(3)
        world.allreduce([x]).wait()
        assert x.tolist() == [2.0] * 3 and len(rdmatensor.device._open_devices) == 1
        world.shutdown()
        assert not rdmatensor.device._open_devices
        """
    )
