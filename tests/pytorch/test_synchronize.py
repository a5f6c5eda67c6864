# SPDX-License-Identifier: Apache-2.0
"""Synchronizers of rdmatensor.train on torch's models: they do with them what they do with numpy's arrays."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from pytorch.ranks import Ranks

Make = Callable[..., Ranks]
# A model of float32 numbers, of which one parameter is frozen; each process has batches of its own.
SETUP = """
import sys
import numpy as np
import rdmatensor.train as rt
from rdmatensor.torch import synchronize
from rdmatensor.torch.synchronize import _Members
torch.manual_seed(rank)  # processes begin with rank 0's model all the same
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = torch.nn.Parameter(torch.randn(3, 4)), torch.nn.Parameter(torch.randn(5))
        self.frozen = torch.nn.Parameter(torch.randn(2), requires_grad=False)
        self.register_buffer("seen", torch.randn(1))
model = Model()
optimizer = torch.optim.SGD(model.parameters(), 0.125)
def push(step):  # the gradient in a step, which depends on process and step only
    return np.random.default_rng([rank, step]).standard_normal(17).astype(np.float32)
def flat():
    return torch.cat([model.a.detach().flatten(), model.b.detach()])
def in_turn(call):  # one process after the other
    for turn in range(size):
        if turn == rank:
            call()
        dist.barrier()
def train(sync, steps, run=lambda call: call()):
    for number in range(sync.steps, sync.steps + steps):
        given = torch.from_numpy(push(number))
        model.a.grad, model.b.grad = given[:12].view(3, 4), given[12:]
        optimizer.step()
        run(sync.step)
"""
# The same in numpy, with another synchronizer of the same kind.
PLAIN = """
def plain(x, synchronizer, steps, run):
    members = _Members(dist.group.WORLD)
    synchronizer.shapes = [(3, 4), (5,)]
    following = synchronizer.begin(members, x)
    def exchange():
        nonlocal following
        if step >= following:
            following = synchronizer.exchange(x, step, 0.125)
    for step in range(1, steps + 1):
        x -= np.float32(0.125) * push(step - 1)
        run(exchange)
    synchronizer.conclude(x, steps)
    synchronizer.finish()
    synchronizer.close()
    members.group.close()
"""


KINDS = [
    "DiLoCo(4)",
    "DiLoCo(4, fragments=2, compression=rt.sync.TopK(0.5))",
    "LocalSGD(rt.sync.QSR(0.3))",
    "PullGossip(2, seed=5)",
    "GossipPGA(4, 4)",
]


@pytest.mark.parametrize("size", [2, 3])
def test_same_as_in_numpy(ranks: Make, size: int) -> None:
    made = ranks(size)
    made.run(SETUP + PLAIN)
    for kind in KINDS:
        made.run(
            f"""
            # Those that wait for nobody find the same models of others only if all keep step.
            run = in_turn if {kind!r}.startswith("PullGossip") else lambda call: call()
            with torch.no_grad():
                model.seen.fill_(rank), model.frozen.fill_(rank)
            sync = synchronize(model, optimizer, rt.sync.{kind})
            assert model.seen.item() == 0 and model.frozen.tolist() == [0, 0]  # rank 0's
            start = flat().numpy().copy()
            train(sync, 11, run)
            sync.finish()
            plain(start, rt.sync.{kind}, 11, run)
            assert np.array_equal(flat().numpy(), start), (flat(), start)
            """
        )
        models = made.get("flat().tolist()")
        if not kind.startswith("PullGossip"):
            assert all(each == models[0] for each in models)
    heavy = made.get("[name for name in sys.modules if name in ('tensorflow', 'keras')]")
    assert heavy == [[]] * size


@pytest.mark.parametrize("steps", [6, 8])
def test_checkpoint(ranks: Make, steps: int, tmp_path: Path) -> None:
    """Who goes on from a checkpoint, of any step, ends with the model of who never stopped."""
    pair = ranks(2)
    pair.run(SETUP)
    kinds = KINDS if steps == 6 else KINDS[:1]
    for kind in kinds:
        pair.run(
            f"""
            run = in_turn if {kind!r}.startswith("PullGossip") else lambda call: call()
            path = {str(tmp_path)!r} + f"/{{rank}}.pt"
            begin = [each.detach().clone() for each in model.parameters()]
            sync = synchronize(model, optimizer, rt.sync.{kind})
            train(sync, {steps}, run)
            dist.barrier()
            torch.save([model.state_dict(), sync.state_dict()], path)
            train(sync, 9, run)
            dist.barrier()
            whole = flat().clone()
            sync.close()

            train(type("None", (), dict(steps=0, step=lambda self: None))(), 1)  # another model meanwhile
            states = torch.load(path)  # weights only
            model.load_state_dict(states[0])
            sync = synchronize(model, optimizer, rt.sync.{kind}, state=states[1])
            assert sync.steps == {steps}
            train(sync, 9, run)
            assert torch.equal(flat(), whole), ({kind!r}, flat() - whole)
            dist.barrier()
            sync.close()
            """
        )


def test_states_that_do_not_fit(ranks: Make) -> None:
    pair = ranks(2)
    pair.run(SETUP)
    pair.run(
        """
        def refused(text, make="DiLoCo(2)", **changes):
            given = None if changes.pop("none", False) else {**state, **changes}
            try:
                synchronize(model, optimizer, eval("rt.sync." + make), state=given)
            except rdmatensor.UsageError as error:
                assert text in str(error), error
            else:
                raise AssertionError(text)
        import rdmatensor
        sync = synchronize(model, optimizer, rt.sync.DiLoCo(2))
        train(sync, 3)
        state = sync.state_dict()
        sync.close()
        refused("of DiLoCo in 2 processes, and this is LocalSGD in 2", "LocalSGD(2)")
        refused("of DiLoCo in 3 processes", size=3)
        refused("rank 1 has no state", none=rank == 1)
        refused("of rank 1 is of step 4, and that of rank 0 of step 3", steps=3 + rank)
        sync = synchronize(model, optimizer, rt.sync.DiLoCo(2), state=state)
        sync.finish()
        """
    )


def test_processes_that_wait_for_nobody_end_at_different_steps(ranks: Make) -> None:
    three = ranks(3)
    three.run(SETUP)
    for kind in ("EASGD(1)", "SGP()", "PushGossip()", "SSP(2)", "Decoupled()"):
        three.run(
            f"""
            sync = synchronize(model, optimizer, rt.sync.{kind})
            start = flat()
            train(sync, 5 + 3 * rank)
            sync.finish()
            assert sync.steps == 5 + 3 * rank and torch.isfinite(flat()).all()
            assert not torch.equal(flat(), start)
            """
        )
    three.run(
        """
        checks.until(lambda: not [each for each in threading.enumerate() if "store" in each.name])
        x = torch.ones(3)
        dist.all_reduce(x)
        assert x.tolist() == [3.0] * 3
        """
    )


def test_elastic_averaging_keeps_the_sum(ranks: Make) -> None:
    """Of models and centre: nothing is applied twice or lost. The numbers are exact."""
    pair = ranks(2)
    pair.run(SETUP)
    pair.run(
        """
        with torch.no_grad():
            model.a.zero_(), model.b.zero_()
        sync = synchronize(model, optimizer, rt.sync.EASGD(1, beta=1.0))
        with torch.no_grad():
            model.a.fill_(1024.0 * rank)
        def total():  # each process has a strip of the centre
            x = flat().sum() + sync._synchronizer.strips.own.sum().item()
            dist.all_reduce(x)
            return x.item()
        before = total()
        for _ in range(4):
            in_turn(sync.step)
            while total() != before:  # what was sent is applied by a thread of the receiver
                pass
        """
    )
    first, second = pair.get("flat()[0].item()")
    assert 0 < first < 1024 and 0 < second < 1024
    assert pair.get("before") == [12 * 1024.0] * 2
    pair.run("sync.finish()")


def test_different_steps_end_in_an_error(ranks: Make) -> None:
    pair = ranks(2)
    pair.run(SETUP)
    pair.run("sync = synchronize(model, optimizer, rt.sync.DiLoCo(2))")
    pair[0].start("text = checks.fails(sync.finish)")
    pair[1].start("text = checks.fails(lambda: train(sync, 2))")
    for each in pair.peers:
        each.finish()
    texts = [each.get("text") for each in pair.peers]
    assert all("all_gather" in text and "all_reduce" in text for text in texts), texts
    assert "synchronizing after step 2" in texts[1] and "finishing after step 0" in texts[0], texts
    # The process group itself goes on.
    pair.run("x = torch.ones(3); dist.all_reduce(x); assert x.tolist() == [2.0] * 3")


def test_killed_member(ranks: Make) -> None:
    three = ranks(3)
    three.run(SETUP)
    three.run("sync = synchronize(model, optimizer, rt.sync.DiLoCo(2))")
    for rank in (0, 1):
        three[rank].start(
            "text = checks.fails(lambda: train(sync, 1 << 20)); left = flat().isfinite().all().item()"
        )
    three[2].run("train(sync, 2)")
    three[2].kill()
    for rank in (0, 1):
        three[rank].finish()
        text = three[rank].get("text")
        assert "synchronizing after step 4" in text and "member 2" in text, text
        assert three[rank].get("left")
        three[rank].run("sync.close()")


def test_killed_member_for_which_nobody_waits(ranks: Make) -> None:
    three = ranks(3)
    three.run(SETUP)
    three.run("sync = synchronize(model, optimizer, rt.sync.PullGossip()); train(sync, 2)")
    three[2].kill()
    three.run("train(sync, 20); sync.finish()", [0, 1])


def test_what_is_refused(ranks: Make) -> None:
    pair = ranks(2)
    pair.run(SETUP)
    pair.run(
        """
        def refused(call, text):
            try:
                call()
            except rdmatensor.UsageError as error:
                assert text in str(error), error
                return
            raise AssertionError("it was not refused")
        for kind in (rt.sync.AllReduce(), rt.sync.TopK(0.1), rt.sync.Hierarchical()):
            refused(lambda: synchronize(model, optimizer, kind), "changes gradients")
        gloo = dist.new_group(backend="gloo")
        refused(lambda: synchronize(model, optimizer, rt.sync.DiLoCo(), gloo), "of the backend rdmatensor")
        meta = torch.nn.Linear(2, 2, device="meta")
        refused(lambda: synchronize(meta, optimizer, rt.sync.DiLoCo()), "on the CPU")
        sync = synchronize(model, optimizer, rt.sync.LocalSGD(rt.sync.Quality()))
        refused(sync.step, "step(loss)")
        sync.step(torch.tensor(1.0))
        sync.finish()
        refused(lambda: sync.step(1.0), "make a new one")
        """
    )


def test_several_models_of_several_process_groups(ranks: Make) -> None:
    three = ranks(3)
    three.run(SETUP)
    three.run(
        """
        groups = [dist.new_group([0, 1]), dist.new_group([1, 2])]
        mine = groups if rank == 1 else [groups[rank // 2]]
        models = [Model() for _ in mine]
        syncs = [synchronize(each, torch.optim.SGD(each.parameters(), 0.1), kind(), group)
                 for each, group in zip(models, mine) for kind in (rt.sync.PullGossip, rt.sync.LocalSGD)]
        for _ in range(8):
            for sync in syncs:
                sync.step()
        for sync in syncs:
            sync.finish()
        """
    )
    three.run("dist.destroy_process_group()")


def test_process_group_is_destroyed_without_the_end(ranks: Make) -> None:
    pair = ranks(2)
    pair.run(SETUP)
    pair.run("sync = synchronize(model, optimizer, rt.sync.EASGD(1)); train(sync, 3)")
    pair.run("dist.barrier(); dist.destroy_process_group()")
    pair.run("checks.fails(lambda: train(sync, 1), 'synchronizing after step 4'); sync.close()")
    assert pair.get("len(rdmatensor.device._open_devices)") == [0] * 2
