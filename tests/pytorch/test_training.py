# SPDX-License-Identifier: Apache-2.0
"""Training in torch's ways: the losses are those of gloo, to the bit."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from pytorch.ranks import Ranks


@pytest.fixture
def pair(ranks: Callable[..., Ranks]) -> Ranks:
    """Two processes: the sum of two numbers does not depend on their order."""
    made = ranks(2)
    made.run("gloo = dist.new_group(backend='gloo')")
    return made


@pytest.mark.parametrize("name", ["ddp", "fsdp"])
def test_losses(pair: Ranks, name: str) -> None:
    ours = pair.get("checks.losses(name, dist.group.WORLD)", name=name)
    assert ours == pair.get("checks.losses(name, gloo)", name=name)
    assert ours[0] != ours[1] and ours[0][-1] < ours[0][0]


def test_losses_with_buckets_in_registered_memory(pair: Ranks) -> None:
    ours = pair.get("checks.losses('ddp', dist.group.WORLD, hook=rdmatensor.torch.bucket_hook())")
    assert ours == pair.get("checks.losses('ddp', gloo)")


def test_distributed_tensors(pair: Ranks) -> None:
    pair.run(
        """
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
        mesh = init_device_mesh("cpu", (2,))
        whole = torch.arange(20.0).reshape(5, 4)
        rows = distribute_tensor(whole, mesh, [Shard(0)])
        assert torch.equal(rows.full_tensor(), whole)
        columns = rows.redistribute(mesh, [Shard(1)])
        assert torch.equal(columns.to_local(), whole[:, 2 * rank : 2 * rank + 2])
        product = rows @ columns.t().redistribute(mesh, [Replicate()])
        assert torch.equal(product.full_tensor(), whole @ whole.t())
        """
    )


def test_checkpoint(pair: Ranks, tmp_path: Path) -> None:
    pair.run(
        """
        import torch.distributed.checkpoint as checkpoint
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.tensor import Shard, distribute_tensor
        mesh = init_device_mesh("cpu", (2,))
        whole = torch.arange(20.0).reshape(5, 4)
        checkpoint.save({"x": distribute_tensor(whole, mesh, [Shard(0)])}, checkpoint_id=folder)
        got = distribute_tensor(torch.zeros(5, 4), mesh, [Shard(1)])
        checkpoint.load({"x": got}, checkpoint_id=folder)
        assert torch.equal(got.full_tensor(), whole)
        """,
        folder=str(tmp_path / "checkpoint"),
    )


def test_pipeline(pair: Ranks) -> None:
    pair.run(
        """
        from torch.distributed.pipelining import PipelineStage, Schedule1F1B
        torch.manual_seed(0)
        layers = [torch.nn.Linear(8, 8), torch.nn.Linear(8, 4)]
        x, y = torch.randn(16, 8), torch.randn(16, 4)
        stage = PipelineStage(layers[rank], rank, 2, torch.device("cpu"))
        schedule = Schedule1F1B(stage, 4, loss_fn=torch.nn.functional.mse_loss)
        if rank == 0:
            schedule.step(x)
        else:
            losses = []
            schedule.step(target=y, losses=losses)
            wanted = [torch.nn.functional.mse_loss(layers[1](layers[0](a)), b)
                      for a, b in zip(x.chunk(4), y.chunk(4))]
            assert torch.allclose(torch.stack(losses), torch.stack(wanted))
        """
    )
