# SPDX-License-Identifier: Apache-2.0
"""Trains a PyTorch model in several processes over rdmatensor.

Start it by `torchrun --nproc-per-node 2 torch_ddp.py`, or by `rdmatensor launch -n 2 torch_ddp.py`.
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import rdmatensor.torch  # registers the backend; torch 2.14 and later find it by themselves


def main() -> None:
    dist.init_process_group("rdmatensor")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DistributedDataParallel(
        nn.Sequential(nn.Linear(20, 256), nn.ReLU(), nn.Linear(256, 1)),
        gradient_as_bucket_view=True,
    )
    # Optional: gradients are averaged in memory that the other processes read in place.
    model.register_comm_hook(None, rdmatensor.torch.bucket_hook())
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    numbers = torch.Generator().manual_seed(rank)
    for step in range(200):
        x = torch.randn(64, 20, generator=numbers)
        y = x.square().sum(1, keepdim=True)
        loss = nn.functional.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 50 == 0:
            dist.all_reduce(loss.detach(), dist.ReduceOp.AVG)
            if rank == 0:
                print(f"step {step}: loss {loss.item():.2f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
