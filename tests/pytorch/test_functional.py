# SPDX-License-Identifier: Apache-2.0
"""Functional collectives that torch calls past Python, unless they are registered."""

from __future__ import annotations

from pytorch.ranks import Ranks

SETUP = """
calls, wait = torch.ops._c10d_functional, torch.ops._c10d_functional.wait_tensor
gloo_name, name = gloo.group_name, dist.group.WORLD.group_name
x = torch.arange(4.0) + rank
"""


def test_gathers_into_a_tensor(three: Ranks) -> None:
    three.run(SETUP)
    three.run(
        """
        def gathered(x, out):
            return wait(calls.all_gather_into_tensor_out(x, size, name, out=out))

        wanted = torch.cat([torch.arange(4.0) + each for each in range(size)])
        for call in gathered, torch.compile(gathered, backend="aot_eager", fullgraph=True):
            out = torch.empty(4 * size)
            assert torch.equal(call(x, out), wanted) and torch.equal(out, wanted)
        out = calls.all_gather_into_tensor_out(x, size, gloo_name, out=torch.empty(4 * size))
        assert torch.equal(wait(out), wanted)
        """
    )


def test_sends_and_receives_in_a_batch(three: Ranks) -> None:
    three.run(SETUP)
    three.run(
        """
        after, before = (rank + 1) % size, (rank - 1) % size
        registered = torch._C._distributed_c10d._get_work_registry_size
        for group in name, gloo_name:
            earlier = registered()
            y, z = torch.empty(4), torch.empty(4)
            given = [x, y, x * 2, z]
            kinds, tags = ["isend", "irecv"] * 2, [1, 1, 2, 2]
            results = calls.batch_p2p_ops(kinds, [after, before] * 2, tags, given, group)
            sent, got, _, more = [wait(each) for each in results]
            assert sent.numel() == 0
            assert torch.equal(got, torch.arange(4.0) + before) and torch.equal(more, got * 2)
            assert registered() == earlier or group == gloo_name  # it leaves sends there
        """
    )
