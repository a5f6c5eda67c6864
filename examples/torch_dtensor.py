# SPDX-License-Identifier: Apache-2.0
"""Cuts the layers of a PyTorch model over processes, as DTensors on a device mesh, over rdmatensor.

Start it by `torchrun --nproc-per-node 2 torch_dtensor.py`, or by `rdmatensor launch -n 2 torch_dtensor.py`.
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)

import rdmatensor.torch  # noqa: F401 - registers the backend; torch 2.14 and later find it by themselves


def main() -> None:
    dist.init_process_group("rdmatensor")
    rank, size = dist.get_rank(), dist.get_world_size()
    mesh = init_device_mesh("cpu", (size,))

    # A tensor whose rows are divided, multiplied by one whose columns are.
    torch.manual_seed(0)
    a, b = torch.randn(64, 32), torch.randn(32, 48)
    product = distribute_tensor(a, mesh, [Shard(0)]) @ distribute_tensor(b, mesh, [Shard(1)])
    error = (product.full_tensor() - a @ b).abs().max().item()

    # A model of which each process has some columns of the first layer and rows of the second.
    model = nn.Sequential(nn.Linear(20, 256), nn.ReLU(), nn.Linear(256, 1))
    parallelize_module(model, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    numbers = torch.Generator().manual_seed(1)  # all processes see the same batches
    for step in range(100):
        x = torch.randn(64, 20, generator=numbers)
        y = x.square().sum(1, keepdim=True)
        loss = nn.functional.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if rank == 0 and step % 25 == 0:
            print(f"step {step}: loss {loss.item():.2f}")
    if rank == 0:
        print(f"the product differs by {error:.0e} from that of one process")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
