# SPDX-License-Identifier: Apache-2.0
"""The process group for torchft: members come and go while a program trains."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from pytorch.ranks import Ranks
from support import waits

pytest.importorskip("torchft", reason="torchft is not installed: pip install --group test")

Make = Callable[..., Ranks]
# Where no name server answers, torch's stores would wait for it for 5 s.
ENVIRONMENT = {"RES_OPTIONS": "timeout:1 attempts:1"}
# `member` configures the process group as that rank of so many, with a prefix for each set of members.
SETUP = """
import logging, weakref
logging.disable(logging.CRITICAL)  # of torchft, which logs each step
from rdmatensor.torch.torchft import ProcessGroup
pg = ProcessGroup(timedelta(seconds=30))
def member(prefix, rank, size):
    pg.configure(f"127.0.0.1:{port}/{prefix}", str(rank), rank, size)
def total():
    x = torch.ones(3)
    pg.allreduce([x], dist.AllreduceOptions()).wait()
    return x.tolist()
"""
COUNT = "from support.usage import usage; before = usage()"
# A replica of torchft: `train` steps until the condition holds, which is the same for all who take part.
REPLICA = """
from torchft import Manager
from torchft.optim import OptimizerWrapper
store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
torch.manual_seed(rank)  # who comes later gets the weights of the others
model = torch.nn.Linear(4, 2)
inner = torch.optim.Adam(model.parameters(), 0.01)
def state():
    return {"model": model.state_dict(), "optimizer": inner.state_dict()}
def load(given):
    model.load_state_dict(given["model"])
    inner.load_state_dict(given["optimizer"])
manager = Manager(
    pg=pg, load_state_dict=load, state_dict=state, min_replica_size=1, use_async_quorum=False,
    timeout=timedelta(seconds=30), rank=0, world_size=1, replica_id=str(rank), hostname="127.0.0.1",
    store_addr="127.0.0.1", store_port=store.port, lighthouse_addr=lighthouse)
optimizer = OptimizerWrapper(manager, inner)
def train(ends, in_step=lambda: None):
    while not ends(manager.num_participants(), manager.current_step()):
        optimizer.zero_grad()
        model(torch.randn(8, 4)).square().sum().backward()
        manager.wait_quorum()
        in_step()
        # Not torchft's DDP, whose assertion fails if an operation does, over gloo too.
        for each in model.parameters():
            manager.allreduce(each.grad).wait()
        optimizer.step()
"""
WEIGHTS = "torch.cat([each.detach().flatten() for each in model.parameters()]).tolist()"


@pytest.fixture
def members(ranks: Make) -> Make:
    def make(size: int, **arguments: object) -> Ranks:
        made = ranks(size, joins=False, environment=ENVIRONMENT, **arguments)
        made[0].run("store = dist.TCPStore('127.0.0.1', 0, is_master=True, wait_for_workers=False)")
        made.run("pass", port=made[0].get("store.port"))
        made.run(SETUP)
        return made

    return make


def test_operations(members: Make) -> None:
    """All that torchft calls, with the arguments that it gives."""
    pair = members(2)
    pair.run(
        """
        from torch.distributed import distributed_c10d as c10d
        member("first", rank, 2)
        assert pg.size() == 2 and pg.errored() is None
        mine, other = torch.full((2,), rank + 1.0), torch.full((2,), 2.0 - rank)

        x = mine.clone()
        pg.allreduce([x], dist.ReduceOp.SUM).wait()
        assert x.tolist() == [3.0] * 2
        several = [mine.clone(), mine + 1]
        pg.allreduce_coalesced(several, dist.AllreduceCoalescedOptions()).wait()
        assert several[0].tolist() == [3.0] * 2 and several[1].tolist() == [5.0] * 2
        outs = [torch.empty(2), torch.empty(2)]
        pg.allgather([outs], [mine], c10d.AllgatherOptions()).wait()
        assert torch.stack(outs).tolist() == [[1.0] * 2, [2.0] * 2]
        outs = [torch.empty(4), torch.empty(4)]
        pg.allgather_into_tensor_coalesced(outs, [mine, -mine], c10d.AllgatherOptions()).wait()
        assert outs[0].tolist() == [1.0, 1.0, 2.0, 2.0] and outs[1].tolist() == [-1.0, -1.0, -2.0, -2.0]
        out = torch.empty(2)
        pg.alltoall_base(out, torch.arange(2.0) + 10 * rank, [1, 1], [1, 1], c10d.AllToAllOptions()).wait()
        assert out.tolist() == [rank, 10.0 + rank]
        x = mine.clone()
        pg.broadcast([x], c10d.BroadcastOptions()).wait()
        assert x.tolist() == [1.0] * 2
        pg.broadcast_one(x.fill_(rank), 1).wait()
        assert x.tolist() == [1.0] * 2
        out, opts = torch.empty(1), c10d.ReduceScatterOptions()
        pg.reduce_scatter([out], [list(mine.split(1))], opts).wait()
        assert out.tolist() == [3.0]
        outs = [torch.empty(1), torch.empty(1)]
        pg.reduce_scatter_tensor_coalesced(outs, [mine, -mine], opts).wait()
        assert torch.cat(outs).tolist() == [3.0, -3.0]
        x = torch.zeros(2)
        (pg.send([mine], 1, 7) if rank == 0 else pg.recv([x], 0, 7)).wait()
        assert rank == 0 or x.tolist() == [1.0] * 2
        pg.barrier(c10d.BarrierOptions()).wait()
        """
    )


def test_members_change(members: Make) -> None:
    three = members(3)
    three.run("member('all', rank, 3)")
    assert three.get("total()") == [[3.0] * 3] * 3
    # Rank 0 is another one now.
    three.run("member('two', 2 - rank, 2)", [1, 2])
    assert three.get("total()", [1, 2]) == [[2.0] * 3] * 2
    text = three[0].get("checks.fails(total)")
    assert "closed the group" in text, text
    three.run("member('back', rank, 3)")
    assert three.get("total()") == [[3.0] * 3] * 3
    three.run("pg.shutdown()")
    assert three.get("len(rdmatensor.device._open_devices)") == [0] * 3


def test_nothing_is_left_of_earlier_members(members: Make) -> None:
    """A longer form: `make test SUITE=torch`."""
    pair = members(2)
    pair.run("for number in range(3): member(f'before {number}', rank, 2); total()")
    pair.run(COUNT)
    pair.run("for number in range(40): member(f'after {number}', (rank + number) % 2, 2); total()")
    pair.run("after = usage()")
    assert pair.get("after") == pair.get("before")


def test_killed_member(members: Make) -> None:
    three = members(3)
    three.run("member('all', rank, 3); total()")
    for rank in (1, 2):
        three[rank].start("text = checks.fails(total)")
    three[0].kill()  # the root of the group
    for rank in (1, 2):
        three[rank].finish()
        assert "member 0" in three[rank].get("text"), three[rank].get("text")


def test_abort_in_an_operation(members: Make) -> None:
    three = members(3)
    three.run("member('all', rank, 3); total()")
    three.run(
        "work = pg.allreduce([torch.ones(3)], dist.AllreduceOptions()); future = work.get_future()",
        [1, 2],
    )
    three.run("pg.abort()", [1])
    texts = three.get("checks.fails(work.wait, 'rank 1 has aborted')", [1, 2])
    three.run("checks.fails(future.wait, 'rank 1 has aborted')", [1, 2])
    assert all("all_reduce, operation 2" in text for text in texts), texts
    assert "aborted" in three[1].get("str(pg.errored())")
    assert three.get("pg.errored()", [0, 2]) == [None] * 2
    three.run("checks.fails(total, 'rank 1 has aborted')", [0])
    three.run("member('anew', rank, 3)")
    assert three.get("(total(), pg.errored())") == [([3.0] * 3, None)] * 3


def test_missing_member(members: Make) -> None:
    pair = members(2)
    pair.run("pg.set_timeout(timedelta(seconds=1))")
    for rank in range(2):
        text = pair[rank].get(f"checks.fails(lambda: member('of {rank}', {rank}, 3))")
        assert ("rank 1" if rank == 0 else "rank 0 has not come") in text, text
    pair.run("pg.set_timeout(timedelta(seconds=30)); member('both', rank, 2)")
    assert pair.get("total()") == [[2.0] * 3] * 2


def test_members_are_threads_of_one_process(members: Make) -> None:
    one = members(1)
    one.run(
        """
        from concurrent.futures import ThreadPoolExecutor
        def work(rank):
            pg = ProcessGroup(timedelta(seconds=30))
            for number in range(3):
                pg.configure(f"127.0.0.1:{port}/{number}", str(rank), rank, 3)
                x = torch.full((3,), float(rank))
                pg.allreduce([x], dist.AllreduceOptions()).wait()
                assert x.tolist() == [3.0] * 3
            pg.shutdown()
        with ThreadPoolExecutor(3) as threads:
            list(threads.map(work, range(3)))
        assert not rdmatensor.torch.session._sessions and not rdmatensor.device._open_devices
        """
    )


def test_replica_that_is_killed_comes_back(members: Make, tmp_path: Path) -> None:
    """torchft's manager and lighthouse: the weights of both are equal afterwards, to the bit."""
    three = members(3)  # the last one is the lighthouse
    three[2].run(
        """
        from torchft.coordination import LighthouseServer
        lighthouse = LighthouseServer("127.0.0.1:0", 1, 1000, 20, 500)
        """
    )
    address = f"http://127.0.0.1:{three[2].get('lighthouse.address()').rpartition(':')[2]}"
    three.run(REPLICA, [0, 1], lighthouse=address)
    three.run("train(lambda replicas, step: replicas == 2 and step >= 3)", [0, 1])

    three[0].start("train(lambda replicas, step: replicas == 1 and step >= 6)")
    three[1].start(
        """
        def hang():
            open(sign, "w").close()
            threading.Event().wait()
        train(lambda *_: False, hang)
        """,
        sign=str(tmp_path / "hangs"),
    )
    waits.until("the replica has not begun its step", (tmp_path / "hangs").exists)
    three[1].kill()
    three[0].finish()
    weights = three[0].get(WEIGHTS)

    again = members(2)
    again.run(SETUP)
    again[1].run("pass", rank=1)
    again[1].run(REPLICA, lighthouse=address)
    both = (three[0], again[1])
    for each in both:
        each.start("train(lambda replicas, step: replicas == 2 and step >= 9)")
    for each in both:
        each.finish()
    found = [each.get(f"(manager.current_step(), {WEIGHTS})") for each in both]
    assert found[0] == found[1] and found[0][1] != weights
    for each in both:
        each.run("manager.shutdown()")
    three[2].run("lighthouse.shutdown()")
