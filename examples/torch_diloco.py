# SPDX-License-Identifier: Apache-2.0
"""Trains a PyTorch model in processes that exchange parameters every 20 steps only: DiLoCo over rdmatensor.

Start it by `torchrun --nproc-per-node 2 torch_diloco.py`, or by `rdmatensor launch -n 2 torch_diloco.py`.
"""

import torch
import torch.distributed as dist
from torch import nn

import rdmatensor.torch
import rdmatensor.train as rt


def main() -> None:
    dist.init_process_group("rdmatensor")
    rank = dist.get_rank()
    model = nn.Sequential(nn.Linear(20, 256), nn.ReLU(), nn.Linear(256, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    # Any synchronizer that exchanges parameters, such as rt.sync.LocalSGD or rt.sync.PullGossip.
    sync = rdmatensor.torch.synchronize(model, optimizer, rt.sync.DiLoCo(period=20))
    numbers = torch.Generator().manual_seed(rank)
    for step in range(200):
        x = torch.randn(64, 20, generator=numbers)
        y = x.square().sum(1, keepdim=True)
        loss = nn.functional.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        sync.step()
        if rank == 0 and step % 50 == 0:
            print(f"step {step}: loss {loss.item():.2f}")
    sync.finish()
    if rank == 0:
        print("all processes have one model now")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
