# SPDX-License-Identifier: Apache-2.0
"""Process groups come and go: nothing is left of them."""

from __future__ import annotations

from collections.abc import Callable

from pytorch.ranks import INIT, Ranks

Make = Callable[..., Ranks]
COUNT = "from support.usage import usage; before = usage()"


def test_again_and_again(ranks: Make) -> None:
    """A process leaves torch.distributed and joins it again, in the same store."""
    pair = ranks(2)
    pair.run("dist.destroy_process_group()")
    again = INIT + "x = torch.ones(3); dist.all_reduce(x); dist.destroy_process_group()"
    pair.run(again)
    pair.run(COUNT)
    for _ in range(20):
        pair.run(again)
    pair.run("after = usage()")
    assert pair.get("after") == pair.get("before")


def test_a_thousand_groups(ranks: Make) -> None:
    pair = ranks(2)
    make = """
        for _ in range(count):
            group = dist.new_group([0, 1])
            x = torch.ones(3)
            dist.all_reduce(x, group=group)
            assert x.tolist() == [2.0] * 3
            dist.destroy_process_group(group)
    """
    pair.run(make, count=3)
    pair.run(COUNT)
    pair.run(make, count=1000)
    pair.run("after = usage()")
    assert pair.get("after") == pair.get("before")


def test_groups_of_some(ranks: Make) -> None:
    three = ranks(3)
    three.run(
        """
        groups = {each: dist.new_group(list(each)) for each in ((0, 1), (1, 2), (2, 0), (1,))}
        for members, group in groups.items():
            if rank in members:
                x = torch.full((3,), float(rank))
                dist.all_reduce(x, group=group)
                assert x.tolist() == [float(sum(members))] * 3
                dist.broadcast(x.fill_(rank), members[-1], group=group)
                assert x.tolist() == [float(members[-1])] * 3
        """
    )


def test_parts_of_several_groups_have_one_name(ranks: Make) -> None:
    three = ranks(3)
    three.run(
        """
        groups = [dist.new_group(list(each)) for each in ((0, 1), (1, 2))]
        parts = [each.split_group([0, 1], group_name="part") for each in groups if dist.get_rank(each) >= 0]
        for each in parts:
            x = torch.ones(3)
            each.allreduce([x]).wait()
            assert x.tolist() == [2.0] * 3
        """
    )


def test_device_is_closed_with_the_last_group(ranks: Make) -> None:
    pair = ranks(2)
    assert pair.get("len(rdmatensor.device._open_devices)") == [1] * 2
    pair.run("group = dist.new_group([0, 1])")
    assert pair.get("len(rdmatensor.device._open_devices)") == [1] * 2
    pair.run("dist.destroy_process_group()")
    assert pair.get("len(rdmatensor.device._open_devices)") == [0] * 2


def test_secret_comes_from_the_store(ranks: Make) -> None:
    """Who does not know the store cannot connect from another host; no setting is left changed."""
    pair = ranks(2)
    assert pair.get("rdmatensor.config.get('SECRET_FILE')") == [""] * 2
    first, second = pair.get("[each.secret for each in rdmatensor.torch.session._sessions]")
    assert first == second and len(first[0]) == 64


def test_members_may_exit_without_destroying(ranks: Make) -> None:
    ranks(2).run("dist.all_reduce(torch.ones(3))")
