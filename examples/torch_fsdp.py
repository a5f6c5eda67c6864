# SPDX-License-Identifier: Apache-2.0
"""Trains a PyTorch model whose parameters are divided among processes (FSDP2) over rdmatensor.

Start it by `torchrun --nproc-per-node 2 torch_fsdp.py`, or by `rdmatensor launch -n 2 torch_fsdp.py`.
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import rdmatensor.torch  # noqa: F401 - registers the backend; torch 2.14 and later find it by themselves


def main() -> None:
    dist.init_process_group("rdmatensor")
    rank, size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(20, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 1)
    )
    whole = sum(each.numel() for each in model.parameters())
    mesh = init_device_mesh("cpu", (size,))
    for layer in model:
        if isinstance(layer, nn.Linear):
            fully_shard(layer, mesh=mesh)  # gathered when it is used, and dropped afterwards
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    numbers = torch.Generator().manual_seed(rank)
    for step in range(100):
        x = torch.randn(64, 20, generator=numbers)
        y = x.square().sum(1, keepdim=True)
        loss = nn.functional.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 25 == 0:
            dist.all_reduce(loss.detach(), dist.ReduceOp.AVG)
            if rank == 0:
                print(f"step {step}: loss {loss.item():.2f}")
    if rank == 0:
        own = sum(each.to_local().numel() for each in model.parameters())
        print(f"rank 0 has {own} of {whole} parameters")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
